// The flat arenas of a stage among its ranks: gradients are summed over all of them, and with ZeRO every rank keeps the
// optimizer's state of its own slice, updates that, and gets the others' parameters from them.
#pragma once
#include "dist/ranks.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace fvlm::train {

// How a stage is divided among processes.
struct Sharing {
  dist::Group* group = nullptr; // null: alone
  int64_t rank = 0, ranks = 1;
  int64_t zero = 0;                 // 1: ranks have slices of the optimizer's state; 2: and of the gradients
  bool reduces_in_backward = false; // each bucket of gradients as soon as it is complete, where the group can

  static Sharing among(const dist::Ranks& ranks, int64_t zero, bool reduces_in_backward) {
    return {ranks.group(), ranks.rank(), ranks.count(), zero, reduces_in_backward};
  }
  bool shards_optimizer() const { return zero >= 1 && ranks > 1; }
  bool shards_gradients() const { return zero >= 2 && ranks > 1; }
};

class SharedArenas {
 public:
  // `whole`: parts of the arena that only one rank can update, sorted. Throws Error(usage) where the arena is too small
  // for so many ranks.
  SharedArenas(const Sharing& sharing, const at::Tensor& arena, const std::vector<dist::Slice>& whole);

  bool is_sharded() const { return sharded_; }
  bool is_shared() const { return group_ != nullptr; }
  bool is_capturable() const { return !group_ || group_->is_capturable(); }
  // What this rank updates: all of the arena without ZeRO.
  const dist::Slice& own() const { return own_; }
  at::Tensor own(const at::Tensor& arena) const { return arena.narrow(0, own_.begin, own_.length); }

  // Lets the ranks exchange gradients that are as long as the arena and live as long as this.
  void share_gradients(const at::Tensor& gradients);

  // Sums the numbers of all ranks.
  void sum(const at::Tensor& numbers) const;
  // Starts to sum the ranks' gradients of a part of the arena. Only what is inside own() has to be right afterwards.
  [[nodiscard]] dist::PendingPointer reduce(const at::Tensor& gradients, const dist::Slice& part) const;
  void count_replayed(int64_t operations) const { group_->count_replayed(operations); }
  // Of reduced gradients, all or own(): a scalar. The ranks compute a slice each, with ZeRO or without, so that both
  // give the same bits.
  at::Tensor norm(const at::Tensor& gradients) const;
  // The parameters that other ranks updated.
  void gather(const at::Tensor& parameters) const;
  // Of what this rank has of an arena, which is own(), its slice among the ranks: a view.
  at::Tensor share(const at::Tensor& own) const;

 private:
  dist::Group* group_ = nullptr; // null: alone
  size_t rank_ = 0;
  int64_t elements_;
  bool sharded_;
  std::vector<dist::Slice> slices_;
  dist::Slice own_;
  at::Tensor norms_;                          // of each slice
  std::vector<std::shared_ptr<void>> shared_; // see dist::Group::share()
};

} // namespace fvlm::train
