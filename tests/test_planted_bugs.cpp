// planted_bugs: which detector finds which fault. Every kernel of planted_bugs.cuh runs in several thread
// orders; its output is compared bit for bit with that of its fault-free twin. Prints a table:
//   bits   the output differs           NaN    the output holds a NaN
//   check  the runtime refused          race   the race shadow reported (build with -DSIMT_RACE_SHADOW)
//   asan   AddressSanitizer or UBSan ended the process (build with -fsanitize=address,undefined)
#include "tests/planted_bugs.cuh"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/child.h"
#include "tests/compare.h"
#include "tests/contents.h"
#include "tests/simt_config.h"

using namespace gated;

namespace {

// NaN past the data, as past what the allocator gives; under ASan its red zones are the better watch.
const size_t margin = simt::under_asan ? 0 : 64;

using Kernel = void (*)(float*, const float*);
enum Finding { nothing, bits, nan_found, check, race, sanitizer };
const char* const finding_names[] = {"-", "bits", "NaN", "check", "race", "asan"};

std::vector<float> run(Kernel kernel) {
  std::vector<float> x(planted::elements + margin, NAN), y(planted::elements, 0.0f);
  for (size_t i = 0; i < planted::elements; i++) x[i] = float(int(i * 37 % 101) - 50) / 8;
  x.shrink_to_fit();
  simt::launch(kernel, planted::blocks, planted::threads, planted::shared_bytes, y.data(), x.data());
  return y;
}

struct Outcome {
  Finding finding = nothing;
  std::string said;
};

Outcome compare(Kernel kernel, const std::vector<float>& expected) {
  try {
    const std::vector<float> y = run(kernel);
    for (float v : y)
      if (std::isnan(v)) return {nan_found, ""};
    return {memcmp(y.data(), expected.data(), y.size() * sizeof(float)) ? bits : nothing, ""};
  } catch (const Error& e) {
    return {simt::races().empty() ? check : race, e.what()};
  }
}

// The same in a child process, which a sanitizer may end.
Outcome compare_in_child(Kernel kernel, const std::vector<float>& expected) {
  const auto [status, said] = in_child([&] {
    const Outcome outcome = compare(kernel, expected);
    fprintf(stderr, "%s", outcome.said.c_str());
    _exit(100 + outcome.finding);
  });
  if (status >= 100) return {Finding(status - 100), said};
  INFO(said);
  REQUIRE((contains(said, "AddressSanitizer") || contains(said, "runtime error")));
  return {sanitizer, said};
}

const char* const order_names[] = {"forward", "reverse", "random", "priority"};
constexpr int order_count = 4, seeds = 4;

// The first finding among the seeds of one order; forward and reverse have no seed.
Outcome find_in_order(Kernel kernel, const std::vector<float>& expected, int order) {
  for (int seed = 1; seed <= (order < 2 ? 1 : seeds); seed++) {
    simt::config.order = simt::Order(order);
    simt::config.seed = seed;
    const Outcome outcome = simt::under_asan ? compare_in_child(kernel, expected) : compare(kernel, expected);
    if (outcome.finding != nothing) return outcome;
  }
  return {};
}

struct Bug {
  const char* name;
  Kernel faulty, twin;
  bool plain;         // certain to be found without any sanitizer, in some order
  bool in_asan;       // certain to be found in the ASan build
  Finding by_shadow;  // what the race shadow's build finds in every order
};
// clang-format off
#define BUG(name) #name, planted::name<true>, planted::name<false>
#define SLIP(name) #name, planted::two_stages<planted::Slip::name>, planted::two_stages<planted::Slip::none>
// clang-format on
const Bug bugs[] = {
    {BUG(no_barriers), true, true, race},
    {BUG(no_barrier_after_load), true, true, race},
    {BUG(no_barrier_before_overwrite), true, true, race},
    {BUG(no_barrier_between_sums), true, true, race},
    {BUG(no_syncwarp), true, true, race},
    {BUG(syncwarp_for_syncthreads), true, true, race},
    {BUG(no_second_syncwarp), true, true, race},
    {BUG(no_barrier_for_second_reader), true, true, race},
    {BUG(store_among_atomics), true, true, race},
    {BUG(add_without_atomic), false, false, race},  // fibers do not interrupt each other
    {BUG(read_other_block), false, false, race},    // blocks run in sequence
    {BUG(unwritten_dynamic), true, true, race},
    {BUG(unwritten_static), true, true, race},
    {BUG(past_the_end_global), true, true, nan_found},
    {BUG(past_the_end_dynamic), true, true, race},
    {BUG(past_the_end_static), false, true, race},
    {BUG(shuffle_for_syncwarp), false, false, race},  // a fiber that shuffles has written before it
    {SLIP(no_wait), true, true, nan_found},
    {SLIP(waits_for_the_group_before), true, true, nan_found},
    {SLIP(no_barrier_behind_wait), true, true, race},
    {SLIP(no_barrier_before_copy), true, true, race},
};

}  // namespace

TEST_CASE("planted bugs: each is found, its twin is clean") {
  const KeepsSimtConfig usual;
  printf("%-28s %9s %9s %9s %9s   twin (build: %s)\n", "planted bug", order_names[0], order_names[1], order_names[2],
         order_names[3],
         simt::under_asan          ? "asan"
         : simt::under_race_shadow ? "race shadow"
                                   : "plain");
  for (const Bug& bug : bugs) {
    INFO(bug.name);
    simt::config = usual.before;
    const std::vector<float> expected = run(bug.twin);
    Outcome outcomes[order_count];
    int found = 0;
    for (int order = 0; order < order_count; order++) {
      outcomes[order] = find_in_order(bug.faulty, expected, order);
      found += outcomes[order].finding != nothing;
      const Outcome twin = find_in_order(bug.twin, expected, order);
      INFO("twin, " << order_names[order] << ": " << twin.said);
      REQUIRE(twin.finding == nothing);
    }
    printf("%-28s", bug.name);
    for (const Outcome& o : outcomes) printf(" %9s", finding_names[o.finding]);
    printf("   clean\n");
    if (simt::under_race_shadow) {
      for (const Outcome& o : outcomes) {
        INFO(o.said);
        REQUIRE(o.finding == bug.by_shadow);
        if (o.finding == race) REQUIRE(contains(o.said, "tests/planted_bugs.cuh:"));
      }
    } else {
      REQUIRE((found > 0 || !(simt::under_asan ? bug.in_asan : bug.plain)));
    }
  }
}

TEST_CASE("planted bugs: the first cause of a race comes first, and all are counted") {
  if (!simt::under_race_shadow) {
    WARN("no race shadow in this build: what it says of races was not looked at (make build/race/test_planted_bugs)");
    return;
  }
  const KeepsSimtConfig restore;
  for (int order = 0; order < order_count; order++) {
    // A read before the write is the race of the two, in whatever order they came.
    const Outcome early = find_in_order(planted::no_barrier_after_load<true>, {}, order);
    INFO(early.said);
    REQUIRE(early.finding == race);
    REQUIRE(early.said.starts_with("simt: a data race: block (0,0,0) thread "));
    REQUIRE((contains(early.said, " times") && !contains(early.said, "no thread of its block")));

    const Outcome many = find_in_order(planted::no_barriers<true>, {}, order);
    INFO(many.said);
    REQUIRE(says(many.said, {" data races. The first, which others may follow from: block (0,0,0) thread ",
                             ". Then: block ", "; and "}));
    REQUIRE(simt::races().size() > 3);
  }
  // What nobody writes stays what it is.
  const Outcome unwritten = find_in_order(planted::unwritten_dynamic<true>, {}, 0);
  REQUIRE(contains(unwritten.said, "shared memory that no thread of its block has written yet"));
}
