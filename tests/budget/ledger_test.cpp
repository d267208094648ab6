// The ledger of predicted memory, and the shadow tape that fills it.
#include "budget/shadow/tape.h"

#include <gtest/gtest.h>

namespace fvlm::budget {
namespace {

int64_t amount(const Ledger& ledger, Item item) {
  return ledger.amounts()[static_cast<size_t>(item)];
}

TEST(Ledger, RecordsPeakAndItsItems) {
  Ledger ledger;
  const Ledger::For weights(ledger, Item::weights);
  auto first = ledger.hold(100);
  {
    const Ledger::For decoder(ledger, Item::decoder);
    const auto second = ledger.hold(50);
    ledger.touch(7);
    EXPECT_EQ(amount(ledger, Item::weights), 100);
    EXPECT_EQ(amount(ledger, Item::decoder), 50);
    EXPECT_EQ(amount(ledger, Item::passing), 0);
  }
  first.reset();
  const auto third = ledger.hold(60);
  EXPECT_EQ(ledger.live(), 60);
  EXPECT_EQ(ledger.peak(), 157);
}

TEST(Ledger, NestedItemsKeepTheOuterName) {
  Ledger ledger;
  const Ledger::For passing(ledger, Item::passing, true);
  const Ledger::For decoder(ledger, Item::decoder);
  const auto held = ledger.hold(5);
  EXPECT_EQ(amount(ledger, Item::passing), 5);
  EXPECT_EQ(amount(ledger, Item::decoder), 0);
}

TEST(ShadowTape, ReleasesSavedTensorsAfterAStep) {
  Ledger ledger;
  shadow::Tape tape;
  shadow::Value x(shadow::make(ledger, 10, 4, 4), true);
  tape.push([kept = shadow::make(ledger, 5, 4, 4)] {});
  EXPECT_EQ(ledger.live(), 240);
  tape.backward();
  EXPECT_EQ(ledger.live(), 160);
}

TEST(ShadowTape, AddsGradientsInPlaceWhereUnshared) {
  Ledger ledger;
  shadow::Gradient gradient;
  gradient.add(shadow::make(ledger, 1, 1, 8));
  gradient.add(shadow::make(ledger, 1, 1, 8));
  EXPECT_EQ(ledger.live(), 8);
  EXPECT_EQ(ledger.peak(), 16);
  const auto shared = shadow::make(ledger, 1, 1, 8);
  shadow::Gradient other;
  other.add(shared);
  other.add(shared);
  EXPECT_EQ(ledger.live(), 24) << "the sum of two that others read is a third";
}

TEST(ShadowTape, KeepsOnlyInputsAndOutputsOfRecomputedBlocks) {
  Ledger ledger;
  const auto block = [&](shadow::Tape& tape, const std::vector<shadow::Value>& in) {
    shadow::Value y(shadow::another(in[0].data), true);
    tape.push(
        [inside = shadow::make(ledger, 100, 1, 1), in = in[0].gradient, out = y.gradient] { in->add(out->take()); });
    return std::vector<shadow::Value>{y};
  };
  shadow::Tape tape;
  const shadow::Value x(shadow::make(ledger, 10, 1, 1), true);
  const auto out = shadow::checkpointed(tape, {x}, block);
  EXPECT_EQ(ledger.live(), 20);
  EXPECT_EQ(ledger.peak(), 120);
  out[0].gradient->add(shadow::another(out[0].data));
  tape.backward();
  EXPECT_FALSE(x.gradient->empty());
}

} // namespace
} // namespace fvlm::budget
