#include "budget/ledger.h"

namespace fvlm::budget {

Ledger::Hold::Hold(Ledger& ledger, Item item, int64_t bytes) : ledger_(ledger), item_(item), bytes_(bytes) {
  ledger_.live_ += bytes_;
  ledger_.amounts_[static_cast<size_t>(item_)] += bytes_;
  if (ledger_.live_ <= ledger_.peak_) return;
  ledger_.peak_ = ledger_.live_;
  ledger_.at_peak_ = ledger_.amounts_;
}

Ledger::Hold::~Hold() {
  ledger_.live_ -= bytes_;
  ledger_.amounts_[static_cast<size_t>(item_)] -= bytes_;
}

} // namespace fvlm::budget
