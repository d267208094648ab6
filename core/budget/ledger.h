// An account of memory that a run would take: what is held at a moment, for what, and the most that ever was.
#pragma once
#include <array>
#include <cstdint>
#include <memory>

namespace fvlm::budget {

// What memory is for. Activations go by the part of the model that keeps them; `passing` is what comes and goes:
// gradients of activations, what is computed again, and what operations need inside.
enum class Item {
  weights,
  gradients,
  masters,
  moments,
  real_weights, // of those that compute quantised
  frozen,
  workspace,
  pack,
  vision,
  connector,
  decoder,
  loss,
  passing
};
constexpr size_t item_count = 13;
using Amounts = std::array<int64_t, item_count>;

class Ledger {
 public:
  Ledger() = default;
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  class Hold {
   public:
    Hold(Ledger& ledger, Item item, int64_t bytes);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Ledger& ledger_;
    Item item_;
    int64_t bytes_;
  };
  using Block = std::shared_ptr<const Hold>;

  // Held until the last copy goes, under the item of the moment.
  Block hold(int64_t bytes) { return std::make_shared<const Hold>(*this, item_, bytes); }
  // Held and let go.
  void touch(int64_t bytes) { const Hold now(*this, Item::passing, bytes); }

  // What is held meanwhile is for this; `whole`: whatever others say meanwhile.
  class For {
   public:
    For(Ledger& ledger, Item item, bool whole = false)
        : ledger_(ledger), item_before_(ledger.item_), whole_before_(ledger.whole_) {
      if (!ledger.whole_) ledger.item_ = item;
      ledger.whole_ = ledger.whole_ || whole;
    }
    ~For() {
      ledger_.item_ = item_before_;
      ledger_.whole_ = whole_before_;
    }
    For(const For&) = delete;
    For& operator=(const For&) = delete;

   private:
    Ledger& ledger_;
    Item item_before_;
    bool whole_before_;
  };

  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }
  const Amounts& amounts() const { return amounts_; }

 private:
  Item item_ = Item::weights;
  bool whole_ = false;
  int64_t live_ = 0, peak_ = 0;
  Amounts amounts_{};
};

} // namespace fvlm::budget
