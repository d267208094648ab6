// Collective operations of the ranks over tensors. All ranks call the same ones in the same order, with equal sizes.
#pragma once
#include "dist/slices.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

namespace fvlm::dist {

enum class Reduction { sum, max };

// An operation under way. The tensors have their results when wait() returns; on a GPU it only makes the current stream
// wait. Throws Error(stopped) that names the rank which was lost.
class Pending {
 public:
  Pending() = default;
  virtual ~Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  virtual void wait() = 0;
};
using PendingPointer = std::unique_ptr<Pending>;

class Group {
 public:
  Group() = default;
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  virtual const char* name() const = 0;
  // Whether a CUDA graph can capture the operations.
  virtual bool is_capturable() const = 0;

  // Begins to end operations that wait for a rank which was lost: no more are called.
  virtual void abort() {}

  // A CUDA graph was replayed that has so many operations: for who counts how far a rank has got.
  virtual void count_replayed(int64_t /*operations*/) {}

  // All ranks have such a buffer, of the same size: until the pointer goes, which may be null and goes before the
  // group, operations on parts of it may be faster. Not while a CUDA graph is captured.
  [[nodiscard]] virtual std::shared_ptr<void> share(const at::Tensor& /*buffer*/) { return nullptr; }

  // In place; every rank has the same bits afterwards.
  [[nodiscard]] virtual PendingPointer all_reduce(const at::Tensor& values, Reduction reduction) = 0;
  [[nodiscard]] virtual PendingPointer broadcast(const at::Tensor& values, int64_t from) = 0;
  // Over a flat buffer with a slice for each rank, in place. reduce_scatter() sums: a rank's own slice is that of
  // all_reduce() in bits, what it leaves in the others is undefined. all_gather() spreads the ranks' own slices.
  [[nodiscard]] virtual PendingPointer reduce_scatter(const at::Tensor& buffer, std::span<const Slice> slices) = 0;
  [[nodiscard]] virtual PendingPointer all_gather(const at::Tensor& buffer, std::span<const Slice> slices) = 0;
  // Sends to one rank and receives from one, as both do to each other or all in a ring: contiguous tensors of equal
  // sizes. Their memory is kept until the operation was waited for.
  [[nodiscard]] virtual PendingPointer send_receive(const at::Tensor& sent, int64_t to, const at::Tensor& received,
                                                    int64_t from) = 0;
};

} // namespace fvlm::dist
