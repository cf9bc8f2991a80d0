// flags: the table, the command line, the schedule; that docs/flags.md is the table's, and that the lines of the pages
// are accepted.
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/compare.h"
#include "tests/pages.h"
#include "tests/refusal.h"
#include "tests/script.h"
#include "training/flags/command_line.h"
#include "training/flags/run_metadata.h"

using namespace gated;

namespace {

// "" when accepted, else the refusal.
std::string parse(Config& config, std::vector<std::string> words) {
  std::vector<char*> argv = {const_cast<char*>("train")};
  for (std::string& w : words) argv.push_back(w.data());
  return refusal([&] { parse_command_line(config, int(argv.size()), argv.data()); });
}
std::string parse(std::vector<std::string> words) {
  Config config;
  return parse(config, std::move(words));
}

}  // namespace

TEST_CASE("flags: every flag reads back what it prints, and every named value is accepted", "[flags]") {
  Config config;
  const std::vector<Flag> flags = list_flags(config);
  for (const Flag& f : flags) {
    INFO(f.name);
    REQUIRE(!f.help.empty());
    const std::string before = f.get();
    f.set(before);
    REQUIRE(f.get() == before);
    for (const auto& choice : f.choices) {
      INFO(choice.value);
      f.set(choice.value);
      REQUIRE(f.get() == choice.value);
      REQUIRE(std::ifstream(choice.file).good());  // the file that implements it is there
    }
    f.set(before);
  }
}

TEST_CASE("flags: values arrive", "[flags]") {
  Config c;
  REQUIRE(parse(c, {"--norm=gated", "--norm-rank=8", "--attn=g1", "--gate=headwise", "--ffn=glu", "--tied=off",
                    "--qk-norm=off", "--lr=0.5", "--min-lr=0.25", "--warmup=3", "--steps=10",
                    "--seed=18446744073709551615", "--out=x", "--resume"}) == "");
  REQUIRE((c.model.norm.kind == NormKind::gated && c.model.norm.gate.rank == 8 &&
           c.model.attention.gate_at == GatePosition::g1));
  REQUIRE((c.model.attention.gate.kind == GateKind::headwise && c.model.ffn.kind == FfnKind::glu && !c.model.tied &&
           !c.model.attention.qk_norm));
  REQUIRE((c.schedule.peak == 0.5f && c.schedule.final == 0.25f && c.schedule.warmup == 3 && c.schedule.steps == 10));
  REQUIRE((c.seed == UINT64_MAX && c.data.seed == UINT64_MAX && c.out == "x" && c.resume));
}

TEST_CASE("flags: what is wrong is refused by name", "[flags]") {
  REQUIRE(contains(parse({"--nomr=gated"}), "--nomr"));
  REQUIRE(contains(parse({"--norm=batch"}), "--norm=batch: expected rmsnorm | layernorm"));
  for (const char* bad : {"--layers=0", "--layers=-1", "--layers=2x", "--layers=", "--layers=99999999999999999999",
                          "--lr=nan", "--lr=inf", "--lr=-1", "--head-dim=257", "--clip=0", "--temperature=-1",
                          "--beta2=1", "--device=tpu", "--precision=fp16"}) {
    INFO(bad);
    const std::string word = bad, message = parse({word});
    REQUIRE(contains(message, word.substr(0, word.find('='))));
    REQUIRE(!contains(message, "\n"));
  }
  REQUIRE(parse({"stray"}) != "");
  REQUIRE(parse({"--steps"}) != "");
  REQUIRE(contains(parse({"--gate=headwise"}), "--attn=g1"));
  REQUIRE(contains(parse({"--norm-rank=8"}), "--norm=gated"));
  REQUIRE(contains(parse({"--micro-batches=6", "--slices=4"}), "--slices=4 does not divide --micro-batches=6"));
  REQUIRE(contains(parse({"--head-experts-per-token=2"}), "add --head-experts=E"));
  REQUIRE(contains(parse({"--head-experts=0", "--head-experts-of=kv"}), "add --head-experts=E"));
  REQUIRE(contains(parse({"--head-experts=33"}), "--head-experts=33: expected at most 32"));
  REQUIRE(contains(parse({"--head-experts=2", "--head-experts-per-token=0"}), "--head-experts-per-token=0: expected"));
  REQUIRE(contains(parse({"--mixer=gated-delta", "--head-experts=2"}), "--head-experts needs a layer with attention"));
  REQUIRE(contains(parse({"--experts-per-token=1"}), "add --experts=E"));
  REQUIRE(contains(parse({"--experts=4", "--experts-per-token=5"}), "--experts-per-token=5 is more than --experts=4"));
  REQUIRE(contains(parse({"--experts=2147483648"}), "--experts=2147483648: expected at most 12288"));
  REQUIRE(contains(parse({"--experts=4", "--expert-hidden=0"}), "--expert-hidden=0: expected"));
  REQUIRE(contains(parse({"--experts=4", "--shared-expert-gate"}), "--shared-experts=N"));
  REQUIRE(contains(parse({"--experts=4", "--ffn-hidden=8"}), "--expert-hidden; add --dense-layers=N"));
  REQUIRE(contains(parse({"--experts=4", "--layers=3", "--dense-layers=3"}), "--dense-layers=3 of --layers=3"));
  REQUIRE(
      contains(parse({"--experts=4", "--params=5M", "--expert-hidden=8"}), "--params, --match-params and --expert"));
  REQUIRE(
      contains(parse({"--experts=8", "--experts-per-token=8", "--batch=32768", "--context=16384"}), "2^31 - 1 rows"));
  REQUIRE(contains(parse({"--resume"}), "--out"));
  REQUIRE(contains(parse({"--evaluate"}), "--out"));
  REQUIRE(contains(parse({"--evaluate", "--resume", "--out=x"}), "leave --resume out"));
  REQUIRE(contains(parse({"--yarn=4"}), "--yarn needs --evaluate or --generate"));
  REQUIRE(contains(parse({"--generate"}), "--generate needs --from=FOLDER or --out=FOLDER"));
  for (const char* flag : {"--prompt=a", "--prompt-tokens=1", "--tokens=1", "--samples=2"})
    REQUIRE(contains(parse({flag}), "needs --generate"));
  REQUIRE(contains(parse({"--generate", "--from=x", "--out=y"}), "--generate with --from and --out"));
  REQUIRE(contains(parse({"--generate", "--out=/nowhere"}), "--from=/nowhere: there is no such file or folder"));
  REQUIRE(contains(parse({"--top-p=1.5"}), "--top-p=1.5: expected at most 1"));
  REQUIRE(contains(parse({"--rope-scaling=ntk,2"}), "--rope-scaling=ntk,2: expected none, linear, llama3, yarn"));
  REQUIRE(contains(parse({"--rope-scaling=linear"}), "--rope-scaling=linear: expected linear,S"));
  REQUIRE(contains(parse({"--rope-scaling=yarn,4"}), "--rope-scaling=yarn,4: expected yarn,S,L or yarn,S,L,SLOW,FAST"));
  REQUIRE(contains(parse({"--rope-scaling=yarn,0.5,9"}), "--rope-scaling=0.5: expected a number from 1 to"));
  REQUIRE(contains(parse({"--rope-scaling=yarn,4,0"}), "--rope-scaling=0: expected a whole number >= 1"));
  REQUIRE(contains(parse({"--rope-scaling=llama3,4,9,5,5"}), "SLOW is 5 and FAST 5, expected a range"));
  REQUIRE(contains(parse({"--rope-scaling=linear,2", "--position=none"}), "--rope-scaling needs --position=rope"));
  REQUIRE(contains(parse({"--yarn=2", "--rope-scaling=linear,2", "--evaluate", "--out=x"}),
                   "--yarn=2 with --rope-scaling"));
  REQUIRE(contains(parse({"--embedding-factor=2", "--embedding-scale"}), "--embedding-factor with --embedding-scale"));
  REQUIRE(contains(parse({"--window-rope-theta=100"}), "--window-rope-theta needs a window"));
  REQUIRE(contains(parse({"--full-every=2", "--window=3"}), "--full-every needs --window=N --window-layers=not-nth"));
  REQUIRE(contains(parse({"--yarn=4", "--evaluate", "--out=x", "--position=none"}), "--yarn needs --position=rope"));
  REQUIRE(contains(parse({"--yarn=4", "--evaluate", "--out=x", "--mixer=gated-delta"}), "--yarn needs a layer with"));
  REQUIRE(contains(parse({"--yarn=0.5", "--evaluate", "--out=x"}), "--yarn=0.5: expected a number from 1"));
  REQUIRE(contains(parse({"--quantize=fp8-w8a8", "--out=x"}), "--quantize needs --evaluate"));
  REQUIRE(contains(parse({"--quantize=int8", "--out=x", "--evaluate"}), "expected none | fp8-w8a8 | nvfp4-w4a4"));
  const auto smooths = [](const char* alpha, const char* more) {
    return parse({"--out=x", "--evaluate", "--quantize=nvfp4-w4a4", alpha, more});
  };
  REQUIRE(smooths("--smoothquant=0.5", "--norm=gated-dyt") == "");
  REQUIRE(contains(parse({"--out=x", "--evaluate", "--smoothquant=0.5"}), "--smoothquant needs --quantize=fp8-w8a8"));
  REQUIRE(contains(smooths("--smoothquant=1.5", "--norm=gated"), "--smoothquant=1.5: expected at most 1"));
  REQUIRE(contains(smooths("--smoothquant=-0.1", "--norm=gated"), "--smoothquant=-0.1: expected a number from 0 to 1"));
  REQUIRE(contains(smooths("--smoothquant=0.5", "--norm=none"), "--smoothquant=0.5 with --norm=none"));
  REQUIRE(contains(smooths("--smoothquant=0.5", "--norm-placement=post"), "with --norm-placement=post"));
  REQUIRE(contains(parse({"--probe=retrieval", "--data=recall"}), "--probe needs --evaluate"));
  REQUIRE(contains(parse({"--choices=file.bin"}), "--choices needs --evaluate"));
  REQUIRE(contains(parse({"--probe=retrieval", "--evaluate", "--out=x"}), "--probe=retrieval with --data=self"));
  REQUIRE(contains(parse({"--probe=retrieval", "--data=recall", "--evaluate", "--out=x", "--context=2"}),
                   "--context=2: a probe has 3 tokens or more"));
  REQUIRE(contains(parse({"--data=recall", "--val-fraction=0.2"}), "--val-fraction"));
  REQUIRE(contains(parse({"--keep=3"}), "--out"));
  REQUIRE(contains(parse({"--val-data=a", "--val-fraction=0.2"}), "--val-fraction"));
  REQUIRE(contains(parse({"--lr=1e-4", "--min-lr=1e-3"}), "--min-lr"));
  REQUIRE(contains(parse({"--steps=5", "--warmup=6"}), "--warmup"));
  for (const auto& [steps, warmup] : std::vector<std::pair<size_t, size_t>>{{1, 1}, {5, 3}, {100, 50}, {2000, 200}}) {
    Config c;
    REQUIRE(parse(c, {format("--steps=%zu", steps)}) == "");  // the default warm-up gives way
    REQUIRE(c.schedule.warmup == warmup);
  }
  REQUIRE(parse({"--lr=1e-4"}) == "");  // and the default final rate
  REQUIRE(contains(parse({"--tied=maybe"}), "--tied=maybe: expected on | off"));
  REQUIRE(contains(parse({"--norm=dyt", "--qk-norm=off", "--norm-eps=1e-4"}), "--norm-eps"));
  REQUIRE(contains(parse({"--data=bigram-backcopy", "--val-fraction=0.2"}), "--val-fraction"));
  REQUIRE(contains(parse({"--params=5", "--ffn-hidden=7"}), "--ffn-hidden"));
  REQUIRE(contains(parse({"--heads=6", "--kv-heads=4"}), "--kv-heads=4"));
}

TEST_CASE("flags: an empty value is a value, never the flag behind it, and a flag without a value takes none for it",
          "[flags]") {
  Config defaults;
  size_t texts = 0;
  for (const Flag& f : list_flags(defaults)) {
    INFO(f.name);
    if (f.name == "--seed") continue;  // the one that stands behind the others
    Config c;
    const std::string message = parse(c, {f.name + "=", "--seed=77"});
    if (message.empty()) {
      REQUIRE(c.seed == 77);
      REQUIRE(contains(f.help, "empty: "));
      texts++;
    } else {
      REQUIRE(message.starts_with(f.name + "=: "));
    }
    if (f.is_switch) continue;
    REQUIRE(parse({f.name, "--seed=77"}) ==
            f.name + " needs a value, found --seed=77: write " + f.name + "=--seed=77 if that is the value");
    REQUIRE(parse({f.name}) == f.name + " needs a value: " + f.name + "=...");
  }
  REQUIRE(texts == 3);
  Config c;
  REQUIRE(parse(c, {"--out", "x y", "--data=", "--data=--seed=5", "--save-every", "7"}) == "");
  REQUIRE((c.out == "x y" && c.data.data == "--seed=5" && c.save_every.steps == 7));
  REQUIRE(contains(parse({"--out=", "--resume"}), "--resume needs --out=FOLDER"));
}

TEST_CASE("flags: a switch is on when named, and takes on or off", "[flags]") {
  Config defaults;
  size_t switches = 0;
  for (const Flag& listed : list_flags(defaults)) {
    if (!listed.is_switch) continue;
    switches++;
    REQUIRE(listed.allowed == "on | off");
    for (auto [value, on] : {std::pair{"", "on"}, {"=on", "on"}, {"=off", "off"}}) {
      Config c;
      const std::string word = listed.name + value;
      INFO(word);
      if (word == "--generate" || word == "--generate=on") continue;  // needs a model: tests/test_generate.cpp
      REQUIRE(parse(c, {word, "--out=x", "--experts=4", "--shared-experts=1",
                        listed.name == "--tf32"               ? "--matmul=cublas"
                        : listed.name == "--change-precision" ? "--resume"
                                                              : "--device=auto"}) == "");
      for (const Flag& f : list_flags(c))
        if (f.name == listed.name) REQUIRE(f.get() == on);
    }
    REQUIRE(contains(parse({listed.name + "=true"}), listed.name + "=true: expected on | off"));
  }
  REQUIRE(switches >= 6);
}

TEST_CASE("flags: whole numbers may have an exponent or a unit", "[flags]") {
  const std::vector<std::pair<const char*, size_t>> numbers = {{"600", 600},    {"1e3", 1000},     {"5K", 5000},
                                                               {"2M", 2000000}, {"1.5M", 1500000}, {"1.7B", 1700000000},
                                                               {"0.5K", 500},   {"1.25e2", 125}};
  for (auto [text, value] : numbers) {
    Config c;
    INFO(text);
    REQUIRE(parse(c, {"--warmup=0", std::string("--steps=") + text}) == "");
    REQUIRE(c.steps == value);
  }
  for (const char* bad :
       {"1.5", "1e-1", "1.0001K", "K", "1e", "5KM", "5k", "-1K", "1e3K", "infB", "nan", "1e19", " 5K"}) {
    INFO(bad);
    REQUIRE(contains(parse({std::string("--steps=") + bad}), "--steps"));
  }
  REQUIRE(contains(parse({"--steps=0"}), "--steps=0: expected a whole number >= 1"));
  REQUIRE(contains(parse({"--steps=1e13"}), "expected at most 1099511627776"));
  REQUIRE(contains(parse({"--head-dim=0"}), "--head-dim=0: expected a whole number from 1 to 256"));
  REQUIRE(contains(parse({"--clip=0"}), "--clip=0: expected a number > 0"));
}

TEST_CASE("flags: --dyt-alpha takes one number for all norms, or two", "[flags]") {
  Config c;
  REQUIRE(parse(c, {"--norm=dyt", "--dyt-alpha=0.2"}) == "");
  REQUIRE((c.model.norm.dyt_alpha == 0.2 && c.model.dyt_alpha_attention == 0.2));
  REQUIRE(parse(c, {"--norm=dyt", "--dyt-alpha=0.2,0.8"}) == "");
  REQUIRE((c.model.norm.dyt_alpha == 0.2 && c.model.dyt_alpha_attention == 0.8));
  for (const Flag& f : list_flags(c))
    if (f.name == "--dyt-alpha") REQUIRE(f.get() == "0.2,0.8");
  for (const char* bad : {"0.2,", ",0.2", "0.2,0.8,1", "0", "0.2,-1", "0.2 0.8"})
    REQUIRE(contains(parse({"--norm=dyt", std::string("--dyt-alpha=") + bad}), "--dyt-alpha="));
}

TEST_CASE("flags: an unknown flag is answered with the nearest one", "[flags]") {
  REQUIRE(contains(parse({"--nomr=gated"}), "there is no flag --nomr: did you mean --norm?"));
  REQUIRE(contains(parse({"--kvheads=2"}), "did you mean --kv-heads?"));
  REQUIRE(contains(parse({"--nrom=gated"}), "did you mean --norm?"));
  REQUIRE(contains(parse({"--val_every=2"}), "did you mean --val-every?"));
  for (const auto& [typed, meant] : std::map<std::string, std::string>{{"--learning-rate=1", "--lr"},
                                                                       {"--batch_size=1", "--batch"},
                                                                       {"--epochs=1", "--steps"},
                                                                       {"--max-steps=1", "--steps"},
                                                                       {"--device=gpu", "cuda"},
                                                                       {"--precision=bfloat16", "bf16"}})
    REQUIRE(contains(parse({typed}), ": did you mean " + meant + "?"));
  REQUIRE(contains(parse({"--colour=1"}), "there is no flag --colour ("));
  REQUIRE(contains(parse({"stray"}), "stray: expected a flag"));
}

TEST_CASE("flags: a step has as many slices as divide it, up to eight, and these have one name", "[flags]") {
  for (auto [micro_batches, slices] :
       {std::pair<size_t, size_t>{1, 1}, {2, 2}, {7, 7}, {8, 8}, {9, 3}, {11, 1}, {12, 6}, {16, 8}, {1024, 8}}) {
    const std::string flags = format("--micro-batches=%zu", micro_batches);
    REQUIRE(config_of_flags(flags).slice_count() == slices);
    REQUIRE(config_of_flags(flags + format(" --slices=%zu", slices)).slices == 0);
    REQUIRE(config_of_flags(flags + " --slices=1").slice_count() == 1);
  }
}

TEST_CASE("flags: what only a GPU can do is refused where none is", "[flags]") {
  REQUIRE(contains(parse({"--matmul=cublas", "--device=cpu"}), "--matmul=cublas with --device=cpu"));
  REQUIRE(contains(parse({"--matmul=cublas", "--device=emulated"}), "--matmul=cublas with --device=emulated"));
  REQUIRE(contains(parse({"--tf32"}), "--tf32 needs --matmul=cublas"));
  REQUIRE(contains(parse({"--mma=ampere"}), "--mma needs --precision=bf16"));
  REQUIRE(contains(parse({"--change-precision"}), "--change-precision needs --resume"));
  REQUIRE(contains(parse({"--precision=bf16", "--head-dim=24"}), "--precision=bf16 with --head-dim=24"));
  REQUIRE(parse({"--precision=bf16", "--experts=4", "--head-experts=2"}) == "");
  REQUIRE(
      contains(parse({"--precision=bf16", "--evaluate", "--out=x", "--quantize=fp8-w8a8"}), "add --precision=fp32"));
  REQUIRE(contains(parse({"--precision=bf16", "--mixer=hybrid", "--linear-key-dim=24"}),
                   "--precision=bf16 with --linear-key-dim=24: tensor cores multiply 16 at a time"));
  REQUIRE(contains(parse({"--precision=bf16", "--mixer=gated-delta", "--linear-value-dim=8"}),
                   "--precision=bf16 with --linear-value-dim=8"));
  REQUIRE(contains(parse({"--precision=bf16", "--mixer=hybrid", "--delta=chunk"}), "--delta needs --precision=fp32"));
  Config c;
  REQUIRE(parse(c, {"--matmul=cublas", "--tf32"}) == "");
  REQUIRE((c.cublas && c.tf32));
  check_device_flags(c, "");
  REQUIRE_THROWS_WITH(check_device_flags(c, "nothing answers"),
                      "--matmul=cublas: cuBLAS runs on a GPU alone, and nothing answers; or take --matmul=exact");
  REQUIRE(contains(parse({"--graph", "--device=cpu"}), "--graph=on with --device=cpu: nothing is launched there"));
  Config graph, emulated;
  REQUIRE(parse(graph, {"--graph"}) == "");
  check_device_flags(graph, "");
  REQUIRE_THROWS_WITH(check_device_flags(graph, "nothing answers"),
                      "--graph=on: nothing is launched on the CPU that a graph could hold, and nothing answers; leave "
                      "--graph out, or take --device=emulated");
  REQUIRE(parse(emulated, {"--graph", "--device=emulated"}) == "");
  check_device_flags(emulated, "nothing answers");
  Config cuda;
  REQUIRE(parse(cuda, {"--device=cuda"}) == "");
  check_device_flags(cuda, "");
  REQUIRE_THROWS_WITH(check_device_flags(cuda, "nothing answers"),
                      "--device=cuda: nothing answers; or take --device=cpu, or --device=emulated to run the kernels "
                      "without a GPU");
  check_device_flags(Config(), "nothing answers");
}

TEST_CASE("schedule: warm-up is a line, then a cosine falls to the final rate", "[flags]") {
  const Schedule s = {1.0f, 0.1f, 10, 110};
  REQUIRE(s.at(1) == 0.1f);
  REQUIRE(s.at(10) == 1.0f);
  REQUIRE(s.at(60) == Approx(0.55));
  REQUIRE(s.at(110) == 0.1f);
  for (size_t step = 11; step <= 110; step++) REQUIRE(s.at(step) < s.at(step - 1));
  const Schedule no_cosine = {1.0f, 0.1f, 5, 5}, no_warmup = {1.0f, 0.0f, 0, 2};
  REQUIRE(no_cosine.at(5) == 1.0f);
  REQUIRE(no_warmup.at(1) == 0.5f);
}

TEST_CASE("schedule: constant, then a line to the final rate; longer runs have its rates up to the decay", "[flags]") {
  const Schedule s = {1.0f, 0.2f, 10, 110, ScheduleKind::wsd, 40};
  REQUIRE((s.at(1) == 0.1f && s.at(10) == 1.0f && s.at(70) == 1.0f && s.stable_until() == 70));
  REQUIRE((s.at(71) < 1.0f && s.at(90) == Approx(0.6) && s.at(110) == 0.2f));
  Schedule longer = s;
  longer.steps = 500;
  REQUIRE(steps_in_common(s, longer) == 70);
  const Schedule cosine = {1.0f, 0.1f, 10, 110}, longer_cosine = {1.0f, 0.1f, 10, 120};
  REQUIRE((steps_in_common(cosine, longer_cosine) == 10 && steps_in_common(cosine, cosine) == 110));
  REQUIRE((cosine.stable_until() == 0 && Schedule{1.0f, 0.1f, 1, 1, ScheduleKind::wsd, 0}.at(1) == 1.0f));
  const auto decay = [](const char* line) {
    return config_of_flags(std::string("--schedule=wsd ") + line).schedule.decay_steps();
  };
  REQUIRE((decay("--steps=600") == 120 && decay("--steps=1") == 0 && decay("--steps=9 --decay=2") == 2));
  REQUIRE(contains(parse({"--schedule=wsd", "--steps=9", "--warmup=5", "--decay=5"}), "longer than --steps=9"));
  REQUIRE(contains(parse({"--decay=5"}), "--decay needs --schedule=wsd"));
  REQUIRE((rate_of_trained(64) == 3e-4f && rate_of_trained(4096) == 0.04f / 4096));
}

TEST_CASE("flags: docs/flags.md is the table's", "[readme]") {
  INFO("./train --flag-map > docs/flags.md");
  REQUIRE(contents("docs/flags.md") == flag_map_markdown());
}

TEST_CASE("resume: a checkpoint goes on under the flags that it was made with, by their old names too", "[flags]") {
  auto remembered = [](const std::string& line) {
    Config c = config_of_flags("--data=bigram-backcopy " + line);
    return run_metadata(c, open_data(c.data));
  };
  auto difference = [](const RunMetadata& then, const RunMetadata& now) {
    return refusal([&] { require_same_run("x", then, now); });
  };
  const RunMetadata plain = remembered("");
  REQUIRE(difference(plain, plain) == "");
  REQUIRE(contains(difference(plain, remembered("--norm=gated")), "--norm=rmsnorm, this run has --norm=gated"));
  REQUIRE(contains(difference(plain, remembered("--matmul=cublas")), "--matmul=exact, this run has --matmul=cublas"));
  REQUIRE(contains(difference(plain, remembered("--precision=bf16")),
                   "--precision=fp32, this run has --precision=bf16: resume with the "
                   "same, add --change-precision"));
  REQUIRE(contains(difference(plain, remembered("--vocab=32")), "was made with other data"));
  REQUIRE(difference(plain, remembered("--recompute=full")) == "");
  REQUIRE(difference(plain, remembered("--graph")) == "");
  // As runs before this version wrote it.
  auto old = [](RunMetadata m, const std::map<std::string, std::string>& flags) {
    m.erase("hash--data");
    m.erase("hash--val-data");
    m.erase("flag--matmul");
    m["flag--gate-shared"] = "off";
    m["flag--gate-input"] = "hidden";
    m["flag--dyt-alpha-attn"] = "0.5";
    for (const auto& [name, value] : flags) m["flag" + name] = value;
    return m;
  };
  REQUIRE(difference(old(plain, {}), plain) == "");
  const RunMetadata g1 = remembered("--attn=g1");
  REQUIRE(difference(old(g1, {{"--gate-shared", "on"}}), remembered("--attn=g1 --gate=shared")) == "");
  REQUIRE(difference(old(g1, {{"--gate-input", "none"}}), remembered("--attn=g1 --gate=static")) == "");
  REQUIRE(contains(difference(old(g1, {{"--gate-shared", "on"}}), g1), "--gate=shared"));
  const RunMetadata dyt = remembered("--norm=dyt");
  REQUIRE(difference(old(dyt, {}), dyt) == "");
  const RunMetadata two = old(dyt, {{"--dyt-alpha", "0.2"}, {"--dyt-alpha-attn", "0.8"}});
  REQUIRE(difference(two, remembered("--norm=dyt --dyt-alpha=0.2,0.8")) == "");
  REQUIRE(contains(difference(two, remembered("--norm=dyt --dyt-alpha=0.2")), "--dyt-alpha=0.2,0.8"));
}

TEST_CASE("flags: every ./train of the pages is accepted", "[readme]") {
  size_t commands = 0;
  for (const std::string& page : pages()) {
    std::vector<std::string> lines = shell_lines(page);
    size_t at = 0;
    const std::string text = prose(page);  // in its sentences, S stands for a number and B for another
    for (std::string span; !(span = next_between(text, "`./train", "`", at)).empty();)
      lines.push_back("./train" + std::regex_replace(span, std::regex("=[SB]( |$)"), "=1$1"));
    for (const std::string& line : lines) {
      const size_t begin = line.find("./train ");
      if (begin == std::string::npos) continue;
      std::vector<std::string> words = {""};
      bool quoted = false;
      for (size_t i = begin + 8; i < line.size() && line[i] != '#'; i++) {
        if (line[i] == '\'')
          quoted = !quoted;
        else if ((line[i] == ' ' || line[i] == '\n') && !quoted)
          words.push_back("");
        else
          words.back() += line[i] == '$' ? '1' : line[i];
      }
      INFO(page << ": " << line);
      std::vector<std::string> flags;
      for (const std::string& word : words)
        if (!word.empty() && !word.starts_with("--help") && word != "--version" && word != "--flag-map" &&
            word != ">" && word != "docs/flags.md" && !word.starts_with("--export"))
          flags.push_back(word.starts_with("--seed=1") ? "--seed=1"
                          : word.starts_with("--from=")
                              ? "--out=" + word.substr(7)  // where no model is, as it is read here
                              : word);
      const bool generates =
          std::count(flags.begin(), flags.end(), "--generate") > 0;  // after a model that is not here
      REQUIRE((generates ? contains(parse(flags), "there is no such file or folder") : parse(flags) == ""));
      commands++;
    }
  }
  REQUIRE(commands >= 35);
}

TEST_CASE("flags: every line of flags in the tables of the papers' rows is accepted", "[readme]") {
  const std::string page = contents("docs/tables.md");
  const size_t end = page.find("\n## By one command");
  REQUIRE(end != std::string::npos);
  size_t lines = 0;
  for (size_t at = 0; (at = page.find("`--", at + 1)) < end; lines++) {
    const std::string line = page.substr(at + 1, page.find('`', at + 1) - at - 1);
    if (line.find("=") == std::string::npos || line.find("'") != std::string::npos)
      continue;  // a name, a shell's quotes
    INFO(line);
    std::istringstream words(line);
    std::vector<std::string> list;
    for (std::string w; words >> w;) list.push_back(w);
    REQUIRE(parse(list) == "");
  }
  REQUIRE(lines > 40);
}

TEST_CASE("flags: --help shows what one starts with, or what it is asked about", "[flags]") {
  Config config;
  const std::string first = help_text(80), norms = help_text(80, "norm"), all = help_text(80, "all");
  size_t shown = 0;
  for (const Flag& f : list_flags(config)) {
    INFO(f.name);
    const std::string row = "\n  " + f.name;
    shown += contains(first, row);
    REQUIRE(contains(all, row));
    const bool of_norms = f.kind == Flag::Kind::norm || contains(f.name, "norm");
    REQUIRE((contains(norms, row + "=") || contains(norms, row + " ")) == of_norms);
  }
  REQUIRE(shown >= 20);
  REQUIRE(std::count(first.begin(), first.end(), '\n') < 80);
  REQUIRE(contains(norms, "        gated "));
  REQUIRE(contains(refusal([] { help_text(80, "nrom"); }), "--help=nrom: no flag and no section"));
}
