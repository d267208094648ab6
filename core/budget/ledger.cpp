#include "budget/ledger.h"

#include <algorithm>

namespace fvlm::budget {

Ledger::Hold::Hold(Ledger& ledger, Item item, int64_t bytes) : ledger_(ledger), item_(item), bytes_(bytes) {
  ledger_.live_ += bytes_;
  ledger_.amounts_[static_cast<size_t>(item_)] += bytes_;
  ledger_.peak_ = std::max(ledger_.peak_, ledger_.live_);
}

Ledger::Hold::~Hold() {
  ledger_.live_ -= bytes_;
  ledger_.amounts_[static_cast<size_t>(item_)] -= bytes_;
}

} // namespace fvlm::budget
