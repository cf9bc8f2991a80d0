// simt_config: the emulator's configuration, for tests that change it.
#pragma once
#include "core/simt.h"
#include "tests/catch.h"

namespace gated {

// Puts back, at its end, what was configured at its beginning.
struct KeepsSimtConfig {
  const simt::Config before = simt::config;
  ~KeepsSimtConfig() { simt::config = before; }
};

// Runs test() in every order, and puts back the order that the environment asked for.
template <class Test>
void in_every_order(Test test) {
  const KeepsSimtConfig restore;
  for (simt::Order order : {simt::Order::forward, simt::Order::reverse, simt::Order::random, simt::Order::priority}) {
    simt::config.order = order;
    simt::config.seed = 3;
    INFO("thread order " << int(order));
    test();
  }
}

// What a block has of shared memory, until this ends.
struct SharedLimit : KeepsSimtConfig {
  explicit SharedLimit(size_t bytes) { simt::config.shared_limit = bytes; }
};

}  // namespace gated
