// matrix: every named value of the model's flags, some numbers, and every pair of them that is not refused, in a run
// of a few steps: the same bits on cpu and kernels, finite, learning, the same after saving and loading, with a
// cache the logits of the whole forward, and the same on two ranks (all of them in `make test-all`).
#include "core/philox.cuh"
#include "tests/compare.h"
#include "tests/refusal.h"
#include "tests/script.h"
#include "tests/small_ranks.h"

using namespace gated;

namespace {

// The first value of a flag is its default, which is left out of a line.
std::vector<FlagChoices> factors() {
  std::vector<FlagChoices> all = flags_of_the_model(flag_values(
      "--window=0|3 --rope-fraction=1|0.5 --rope-scaling=none|yarn,4,20 --window-rope-theta=0|100 "
      "--full-every=6|2 --score-dim=0|9 --embedding-factor=1|1.5 --norm-gate-scale=1|2 --clip-residual=0|0.7 "
      "--clip-output=0|0.3 --dropout=0|0.1 --head-experts=0|3 --head-experts-per-token=1|2 --experts=0|4 "
      "--experts-per-token=2|1 --dense-layers=0|1 --shared-experts=0|2 --balance-loss=0.001|0.3 "
      "--z-loss=0.001|0"));
  std::erase_if(all, [](const FlagChoices& f) { return f.values.size() == 1; });
  return all;
}

// An assignment names a value of every factor.
using Assignment = std::vector<size_t>;

std::string line_of(const std::vector<FlagChoices>& all, const Assignment& a) {
  std::string line;
  for (size_t f = 0; f < all.size(); f++)
    if (a[f]) line += (line.empty() ? "" : " ") + all[f].flag + "=" + all[f].values[a[f]];
  return line;
}

std::string refusal_of_model(const std::string& line) {
  return refusal([&] { small_model(line); });
}

struct Lines {
  std::vector<Assignment> accepted;
  size_t pairs = 0, refused_pairs = 0;
};

// Greedy: take a pair that no line has yet, choose the rest at random, and mend what is refused: a refusal names the
// flags that are at odds, and one of them, if it is not of the pair, goes back to its default.
Lines covering_lines(const std::vector<FlagChoices>& all) {
  Lines lines;
  std::set<std::array<size_t, 4>> open;  // (factor, value, factor, value)
  for (size_t f = 0; f < all.size(); f++)
    for (size_t g = f + 1; g < all.size(); g++)
      for (size_t v = 0; v < all[f].values.size(); v++)
        for (size_t w = 0; w < all[g].values.size(); w++) open.insert({f, v, g, w});
  lines.pairs = open.size();
  uint64_t draw = 0;
  auto random = [&](size_t n) { return size_t(random_below(1, 9, draw++, n)); };
  while (!open.empty()) {
    const auto [f, v, g, w] = *open.begin();
    std::optional<Assignment> best;
    size_t most = 0;
    for (int attempt = 0; attempt < 12; attempt++) {
      Assignment a(all.size());
      for (size_t i = 0; i < all.size(); i++) a[i] = random(all[i].values.size());
      a[f] = v, a[g] = w;
      std::string why = refusal_of_model(line_of(all, a));
      while (!why.empty()) {
        std::vector<size_t> at_odds;
        for (size_t i = 0; i < all.size(); i++)
          if (a[i] && i != f && i != g && why.find(all[i].flag) != std::string::npos) at_odds.push_back(i);
        if (at_odds.empty()) break;
        a[at_odds[random(at_odds.size())]] = 0;
        why = refusal_of_model(line_of(all, a));
      }
      if (!why.empty()) continue;
      size_t covers = 0;
      for (const auto& [i, x, j, y] : open) covers += a[i] == x && a[j] == y;
      if (covers > most) most = covers, best = a;
    }
    if (!best) {
      lines.refused_pairs++;
      open.erase(open.begin());
      continue;
    }
    for (auto it = open.begin(); it != open.end();)
      it = (*best)[(*it)[0]] == (*it)[1] && (*best)[(*it)[2]] == (*it)[3] ? open.erase(it) : std::next(it);
    lines.accepted.push_back(*best);
  }
  return lines;
}

// Does the loss of one batch fall when the weights go down its gradient, eight times a short way? (Without the losses
// of routers, which are not in it and would choose the way. From 0.02, where neither a residual nor a norm before a
// product keeps a signal's size, the logits would be too small for any way to be seen.)
bool learns(ModelConfig config, Context& ctx) {
  config.moe.balance = config.moe.z = 0;
  config.init.std = 0.1;
  const RandomBatch batch(config);
  Model model(config, 2, config.context, 3, ctx);
  const float before = model.loss(batch);
  for (uint64_t step = 0; step < 8; step++) {
    forward_backward(model, batch, ctx, {}, step);
    std::vector<float> w = model.weights.values.download();
    const std::vector<float> g = model.weights.grads.download();
    double squares = 0;
    for (const float x : g) squares += double(x) * x;
    for (size_t i = 0; i < w.size(); i++) w[i] -= float(0.02 / std::sqrt(squares)) * g[i];
    model.weights.values.upload(w);
  }
  return model.loss(batch) < before;
}

// The logits after the last token of a sequence, of which all but `last` were read at once and the others one by one.
std::vector<float> with_cache(Model& model, const std::vector<int>& ids, size_t last) {
  model.begin_sequences(1, ids.size());
  std::vector<float> logits = model.read({ids.begin(), ids.end() - ptrdiff_t(last)});
  for (size_t i = ids.size() - last; i < ids.size(); i++) logits = model.read({ids[i]});
  return logits;
}

}  // namespace

TEST_CASE("matrix: every value and every pair of the model's flags trains and generates alike on cpu and kernels",
          "[matrix][bitwise]") {
  const std::vector<FlagChoices> all = factors();
  const Lines lines = covering_lines(all);
  std::set<std::pair<size_t, size_t>> values;
  for (const Assignment& a : lines.accepted)
    for (size_t f = 0; f < all.size(); f++) values.insert({f, a[f]});
  for (size_t f = 0; f < all.size(); f++)
    for (size_t v = 0; v < all[f].values.size(); v++) {
      INFO(all[f].flag << "=" << all[f].values[v]);
      REQUIRE(values.count({f, v}));
    }
  WARN(lines.accepted.size() << " lines cover " << lines.pairs - lines.refused_pairs << " pairs of values of "
                             << all.size() << " flags; " << lines.refused_pairs << " pairs are refused");
  REQUIRE(lines.refused_pairs * 10 < lines.pairs);

  const bool all_on_ranks = getenv("GATED_TEST_ALL");  // `make test` takes a few
  size_t runs = 0;
  const Folder folder;
  for (const Assignment& a : lines.accepted) {
    const std::string line = line_of(all, a);
    INFO(line);
    Config config = small_run(small_model(line), 2);
    config.out = folder / std::to_string(runs++);
    prepare_checkpoint_folder(config.out);
    Context cpu(Device::cpu), kernels(kernel_device);
    Run one(config, cpu), other(config, kernels);
    std::vector<float> trace = one.steps(1);
    one.trainer.save({});
    const std::vector<float> rest = one.steps(1);
    trace.insert(trace.end(), rest.begin(), rest.end());
    REQUIRE_BITWISE(trace, other.steps(2));
    REQUIRE(one.trainer.fingerprint() == other.trainer.fingerprint());

    config.model.recompute = Recompute::full;  // which changes no bit
    Run loaded(config, cpu);
    loaded.trainer.load(*find_latest(config.out));
    REQUIRE_BITWISE(rest, loaded.steps(1));
    REQUIRE(loaded.trainer.fingerprint() == one.trainer.fingerprint());
    const std::vector<int> ids = {1, 30, 7, 7, 2, 11, 36, 0, 5};
    const std::vector<float> whole = one.trainer.model.next_token_logits(ids);
    REQUIRE_BITWISE(whole, with_cache(one.trainer.model, ids, 6));
    REQUIRE_BITWISE(whole, with_cache(other.trainer.model, ids, 1));
    REQUIRE(learns(config.model, cpu));
    if (all_on_ranks || runs % 16 == 1) {
      Config wide = small_run(small_model("--hidden=320 " + line), 2, 4);  // several chunks of parameters in a layer
      wide.slices = (runs + runs / 16) % 2 ? 4 : 2;
      require_same_on_ranks(wide, 2, config.out);
    }
    fs::remove_all(config.out);
  }
}
