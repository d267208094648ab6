#include "dist/nccl_group.h"

#include "base/error.h"
#include "base/task_thread.h"
#include "dist/event_pending.h"
#include "dist/nccl_library.h"
#include "dist/rank_watch.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace fvlm::dist {
namespace {

nccl::Type type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
  case at::kByte:
    return nccl::Type::uint8;
  case at::kLong:
    return nccl::Type::int64;
  case at::kHalf:
    return nccl::Type::float16;
  case at::kFloat:
    return nccl::Type::float32;
  case at::kDouble:
    return nccl::Type::float64;
  case at::kBFloat16:
    return nccl::Type::bfloat16;
  default:
    throw Error(ErrorKind::internal, "NCCL has no operation on {}", toString(tensor.scalar_type()));
  }
}

class NcclGroup : public Group {
 public:
  NcclGroup(nccl::Communicator communicator, int64_t rank, RankWatch& watch)
      : communicator_(communicator), rank_(static_cast<size_t>(rank)), watch_(watch) {}
  ~NcclGroup() override { // does not wait for ranks that were lost
    if (communicator_) (void)nccl_.abort(communicator_);
    if (aborting_.joinable()) aborting_.join();
  }

  const char* name() const override { return "nccl"; }
  bool is_capturable() const override { return true; }
  void count_replayed(int64_t operations) override { watch_.count_collectives(operations); }
  // NCCL ends its kernels, and then waits until the graphs that captured it are destroyed, which is the caller's to do.
  void abort() override {
    if (!communicator_) return;
    aborting_ =
        start_thread([this, communicator = std::exchange(communicator_, nullptr)] { (void)nccl_.abort(communicator); });
  }

  PendingPointer all_reduce(const at::Tensor& values, Reduction reduction) override {
    const auto operation = reduction == Reduction::max ? nccl::Operation::max : nccl::Operation::sum;
    return start([&](nccl::Stream stream) {
      nccl_.check(nccl_.all_reduce(values.data_ptr(), values.data_ptr(), count(values), type_of(values), operation,
                                   communicator_, stream),
                  "cannot reduce");
    });
  }

  PendingPointer broadcast(const at::Tensor& values, int64_t from) override {
    return start([&](nccl::Stream stream) {
      nccl_.check(nccl_.broadcast(values.data_ptr(), values.data_ptr(), count(values), type_of(values),
                                  static_cast<int>(from), communicator_, stream),
                  "cannot broadcast");
    });
  }

  PendingPointer reduce_scatter(const at::Tensor& buffer, std::span<const Slice> slices) override {
    return start([&](nccl::Stream stream) {
      if (are_equal(slices)) {
        nccl_.check(nccl_.reduce_scatter(buffer.data_ptr(), at(buffer, slices[rank_]),
                                         static_cast<size_t>(slices[rank_].length), type_of(buffer),
                                         nccl::Operation::sum, communicator_, stream),
                    "cannot reduce");
        return;
      }
      for_each_slice(slices, [&](size_t rank) {
        void* slice = at(buffer, slices[rank]);
        return nccl_.reduce(slice, slice, static_cast<size_t>(slices[rank].length), type_of(buffer),
                            nccl::Operation::sum, static_cast<int>(rank), communicator_, stream);
      });
    });
  }

  PendingPointer all_gather(const at::Tensor& buffer, std::span<const Slice> slices) override {
    return start([&](nccl::Stream stream) {
      if (are_equal(slices)) {
        nccl_.check(nccl_.all_gather(at(buffer, slices[rank_]), buffer.data_ptr(),
                                     static_cast<size_t>(slices[rank_].length), type_of(buffer), communicator_, stream),
                    "cannot gather");
        return;
      }
      for_each_slice(slices, [&](size_t rank) {
        void* slice = at(buffer, slices[rank]);
        return nccl_.broadcast(slice, slice, static_cast<size_t>(slices[rank].length), type_of(buffer),
                               static_cast<int>(rank), communicator_, stream);
      });
    });
  }

  PendingPointer send_receive(const at::Tensor& sent, int64_t to, const at::Tensor& received, int64_t from) override {
    return start([&](nccl::Stream stream) {
      nccl_.check(nccl_.group_start(), "cannot begin a group of operations");
      const int result = nccl_.send(sent.data_ptr(), count(sent), type_of(sent), static_cast<int>(to), communicator_,
                                    stream),
                other = nccl_.receive(received.data_ptr(), count(received), type_of(received), static_cast<int>(from),
                                      communicator_, stream),
                ended = nccl_.group_end();
      nccl_.check(result != 0 ? result : other != 0 ? other : ended, "cannot send and receive");
    });
  }

 private:
  static size_t count(const at::Tensor& values) { return static_cast<size_t>(values.numel()); }
  static void* at(const at::Tensor& buffer, const Slice& slice) {
    return static_cast<std::byte*>(buffer.data_ptr()) + static_cast<size_t>(slice.begin) * buffer.element_size();
  }
  static bool are_equal(std::span<const Slice> slices) {
    return std::ranges::all_of(slices, [&](const Slice& slice) { return slice.length == slices.front().length; });
  }

  // As one operation.
  template <class Call>
  void for_each_slice(std::span<const Slice> slices, const Call& call) {
    nccl_.check(nccl_.group_start(), "cannot begin a group of operations");
    int result = 0;
    for (size_t rank = 0; rank < slices.size(); ++rank)
      if (slices[rank].length > 0 && result == 0) result = call(rank);
    const int ended = nccl_.group_end();
    nccl_.check(result != 0 ? result : ended, "cannot move the slices of a buffer");
  }

  PendingPointer start(const std::function<void(nccl::Stream)>& enqueue) {
    watch_.count_collectives();
    return std::make_unique<EventPending>(device::runtime()->run_on_communication_stream(enqueue));
  }

  const nccl::Library& nccl_ = nccl::library();
  nccl::Communicator communicator_;
  size_t rank_;
  RankWatch& watch_;
  std::thread aborting_;
};

} // namespace

std::unique_ptr<Group> make_nccl_group(int64_t rank, int64_t ranks,
                                       const std::function<std::string(std::string own)>& from_first,
                                       RankWatch& watch) {
  const nccl::Library& library = nccl::library();
  nccl::UniqueId id{};
  if (rank == 0) library.check(library.get_unique_id(&id), "cannot begin");
  const std::string shared = from_first({id.bytes.data(), id.bytes.size()});
  std::memcpy(id.bytes.data(), shared.data(), std::min(id.bytes.size(), shared.size()));
  nccl::Communicator communicator = nullptr;
  library.check(library.init_rank(&communicator, static_cast<int>(ranks), id, static_cast<int>(rank)),
                "the ranks cannot meet (NCCL_DEBUG=INFO says more)");
  return std::make_unique<NcclGroup>(communicator, rank, watch);
}

} // namespace fvlm::dist
