// flags: the table, the command line, the schedule; that docs/flags.md is the table's, and that the lines of the pages
// are accepted.
#include "tests/fixtures.h"
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

TEST_CASE("flags: what is wrong is refused by name", "[flags]") {
  for (const json& row : read_fixtures("refused_flags.json")) {
    const std::string line = row[0], message = parse(words_of(line));
    INFO(line);
    CHECK(one_line(message, {row[1]}));
  }
  REQUIRE(parse(words_of("--out=x --evaluate --quantize=nvfp4-w4a4 --smoothquant=0.5 --norm=gated-dyt")) == "");
  REQUIRE(parse(words_of("--window=16 --window-rope-theta=1")) == "");
}

TEST_CASE("flags: what is not said follows from what is", "[flags]") {
  for (const auto& [steps, warmup] : std::vector<std::pair<size_t, size_t>>{{1, 1}, {5, 3}, {100, 50}, {2000, 200}})
    REQUIRE(config_of_flags(format("--steps=%zu", steps)).schedule.warmup == warmup);
  REQUIRE(config_of_flags("--lr=1e-5").schedule.final == 1e-5f);  // a default never above --lr
  const Config c = config_of_flags("");
  REQUIRE((c.schedule.steps == c.steps && c.data.seed == c.seed));
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
  REQUIRE(contains(parse({"--steps= 5K"}), "--steps"));
  REQUIRE(contains(parse({"--norm=dyt", "--dyt-alpha=0.2 0.8"}), "--dyt-alpha="));
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
  REQUIRE(parse({"--precision=bf16", "--experts=4", "--head-experts=2"}) == "");
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--matmul=cublas", "--tf32"},
       "--matmul=cublas: cuBLAS runs on a GPU alone, and nothing answers; or take --matmul=exact"},
      {{"--graph"},
       "--graph=on: nothing is launched on the CPU that a graph could hold, and nothing answers; leave --graph out, or "
       "take --device=emulated"},
      {{"--transport=nccl"},
       "--transport=nccl: NCCL moves bytes between GPUs alone, and nothing answers; or take --transport=mpi"},
      {{"--device=cuda"},
       "--device=cuda: nothing answers; or take --device=cpu, or --device=emulated to run the kernels without a GPU"}};
  for (const auto& [flags, refusal] : cases) {
    Config c;
    REQUIRE(parse(c, flags) == "");
    check_device_flags(c, "");
    REQUIRE_THROWS_WITH(check_device_flags(c, "nothing answers"), refusal);
  }
  REQUIRE(contains(parse({"--transport=nccl", "--device=cpu"}), "--transport=nccl with --device=cpu: NCCL moves"));
  REQUIRE(contains(parse({"--transport=nccl", "--device=emulated"}), "--transport=nccl with --device=emulated"));
  Config emulated;
  REQUIRE(parse(emulated, {"--graph", "--device=emulated"}) == "");
  check_device_flags(emulated, "nothing answers");
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
  REQUIRE((steps_in_common(s, longer, 500) == 70 && steps_in_common(s, longer, 60) == 60));
  const Schedule cosine = {1.0f, 0.1f, 10, 110}, longer_cosine = {1.0f, 0.1f, 10, 120};
  REQUIRE((steps_in_common(cosine, longer_cosine, 500) == 10 && steps_in_common(cosine, cosine, 500) == 110));
  REQUIRE((cosine.stable_until() == 0 && Schedule{1.0f, 0.1f, 1, 1, ScheduleKind::wsd, 0}.at(1) == 1.0f));
  const auto decay = [](const char* line) {
    return config_of_flags(std::string("--schedule=wsd ") + line).schedule.decay_steps();
  };
  REQUIRE((decay("--steps=600") == 120 && decay("--steps=1") == 0 && decay("--steps=9 --decay=2") == 2));
  REQUIRE((rate_of_trained(64) == 3e-4f && rate_of_trained(4096) == 0.04f / 4096));
}

TEST_CASE("flags: docs/flags.md is the table's", "[readme]") {
  INFO("./train --flag-map > docs/flags.md");
  REQUIRE(contents("docs/flags.md") == flag_map_markdown());
}

static RunMetadata remembered(const std::string& line) {
  Config c = config_of_flags("--data=bigram-backcopy " + line);
  return run_metadata(c, open_data(c.data));
}
static std::string difference(const RunMetadata& then, const RunMetadata& now) {
  return refusal([&] { require_same_run("x", then, now); });
}

TEST_CASE_METHOD(Folder, "resume: what the data is counts, not where it lies", "[flags]") {
  std::string text;
  for (int i = 0; i < 1000; i++) text += "the same sentence again, ";
  const std::string first = write("first.txt", text), copy = write("elsewhere/copy.txt", text);
  text[100] = 'y';
  const std::string other = write("other.txt", text), other_data = "was made with other data than --";
  for (const std::string data : {"", "val-"}) {
    const std::string flag = "--data=" + first + " --" + data + "data=";
    const RunMetadata then = remembered(flag + first);
    REQUIRE(difference(then, remembered(flag + copy)) == "");
    REQUIRE(contains(difference(then, remembered(flag + other)), other_data + data + "data=" + other + " holds"));
  }
  const RunMetadata then = remembered("--data=" + first);
  REQUIRE(contains(difference(then, remembered("--val-fraction=0.2 --data=" + first)), other_data));
  REQUIRE(difference(then, remembered("--data=" + first + " --val-data=" + first)) != "");
}

TEST_CASE("resume: a checkpoint goes on under the flags that it was made with, by their old names too", "[flags]") {
  const RunMetadata plain = remembered("");
  REQUIRE(difference(plain, plain) == "");
  REQUIRE(contains(difference(plain, remembered("--norm=gated")), "--norm=rmsnorm, this run has --norm=gated"));
  REQUIRE(contains(difference(plain, remembered("--matmul=cublas")), "--matmul=exact, this run has --matmul=cublas"));
  REQUIRE(contains(
      difference(plain, remembered("--precision=bf16")),
      "--precision=fp32, this run has --precision=bf16: give the same, add --change-precision, or name another --out"));
  REQUIRE(contains(difference(plain, remembered("--mixer=gated-delta")),
                   "--mixer=attention, this run has --mixer=gated-delta"));
  REQUIRE(contains(difference(remembered("--layers=1"), remembered("--layers=1 --mixer=hybrid")),
                   "--mixer=attention --attention-every=4, this run has --mixer=hybrid"));
  REQUIRE(contains(difference(plain, remembered("--vocab=32")), "was made with other data"));
  REQUIRE(difference(plain, remembered("--recompute=full")) == "");
  REQUIRE(difference(plain, remembered("--graph")) == "");
  RunMetadata newer = plain;
  newer["flag--wings"] = "2";
  REQUIRE(difference(newer, plain) == "x: was made with \"--wings\"=\"2\", a flag that this program does not have");
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
    for (const auto& span : matches(prose(page), "`(\\./train[^`]+)`"))
      lines.push_back(replaced(span[1], "=[SB]( |$)", "=1$1"));  // S stands for a number in a sentence, B for another
    for (const std::string& line : lines)
      for (const auto& command : matches(line, "\\./train ([^#]*)")) {
        INFO(page << ": " << line);
        std::vector<std::string> flags;
        for (const auto& found : matches(command[1], "([^\\s']|'[^']*')+")) {
          const std::string word = replaced(replaced(found[0], "'", ""), "\\$", "1");
          if (fits(word, "--help.*|--version|--flag-map|>|docs/flags.md|--export.*")) continue;
          // (where no model is, as it is read here)
          flags.push_back(replaced(replaced(word, "^--seed=1.*", "--seed=1"), "^--from=", "--out="));
        }
        const std::string refused = parse(flags);  // (--generate wants a model, which is not here)
        REQUIRE((contains(line, "--generate") ? contains(refused, "there is no such file or folder") : refused == ""));
        commands++;
      }
  }
  REQUIRE(commands >= 35);
}

TEST_CASE("flags: every line of flags in the tables of the papers' rows is accepted", "[readme]") {
  const std::string tables = between(contents("docs/tables.md"), "# ", "\n## By one command");
  const auto lines = matches(tables, "`(--[^`']*=[^`']*)`");  // (others are a name, or have a shell's quotes)
  for (const auto& line : lines) {
    INFO(line[1]);
    REQUIRE(parse(words_of(line[1])) == "");
  }
  REQUIRE(lines.size() > 40);
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
