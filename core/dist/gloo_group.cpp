#include "dist/gloo_group.h"

#include "dist/rank_watch.h"

#include <cstdlib>

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace fvlm::dist {
namespace {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

class GlooPending : public Pending {
 public:
  // `target` is where the result belongs, if not in `host`.
  GlooPending(RankWatch& watch, std::vector<WorkPointer> works, at::Tensor host, at::Tensor target)
      : watch_(watch), works_(std::move(works)), host_(std::move(host)), target_(std::move(target)) {}

  void wait() override {
    try {
      for (const WorkPointer& work : works_) work->wait();
    } catch (const std::exception& error) {
      const std::string what = error.what();
      throw watch_.explain(what.substr(0, what.find('\n')));
    }
    works_.clear();
    if (target_.defined() && !target_.is_same(host_)) target_.copy_(host_);
  }

 private:
  RankWatch& watch_;
  std::vector<WorkPointer> works_;
  at::Tensor host_, target_;
};

class GlooGroup : public Group {
 public:
  GlooGroup(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo, RankWatch& watch)
      : gloo_(std::move(gloo)), watch_(watch) {}

  const char* name() const override { return "gloo"; }
  bool is_capturable() const override { return false; }

  PendingPointer all_reduce(const at::Tensor& values, Reduction reduction) override {
    const at::Tensor host = on_host(values);
    c10d::AllreduceOptions options;
    options.reduceOp = reduction == Reduction::max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    return start(host, values, [&](std::vector<WorkPointer>& works) {
      std::vector<at::Tensor> tensors{host};
      works.push_back(gloo_->allreduce(tensors, options));
    });
  }

  PendingPointer broadcast(const at::Tensor& values, int64_t from) override {
    const at::Tensor host = on_host(values);
    return start(host, values, [&](std::vector<WorkPointer>& works) { works.push_back(broadcast_from(host, from)); });
  }

  // c10d's own does the same: Gloo reduces and scatters to equal slices alone.
  PendingPointer reduce_scatter(const at::Tensor& buffer, std::span<const Slice>) override {
    return all_reduce(buffer, Reduction::sum);
  }

  PendingPointer all_gather(const at::Tensor& buffer, std::span<const Slice> slices) override {
    const at::Tensor host = on_host(buffer);
    return start(host, buffer, [&](std::vector<WorkPointer>& works) {
      for (size_t rank = 0; rank < slices.size(); ++rank)
        if (slices[rank].length > 0)
          works.push_back(
              broadcast_from(host.narrow(0, slices[rank].begin, slices[rank].length), static_cast<int64_t>(rank)));
    });
  }

  PendingPointer send_receive(const at::Tensor& sent, int64_t to, const at::Tensor& received, int64_t from) override {
    const at::Tensor out = on_host(sent), host = received.is_cpu() ? received : at::empty_like(received, at::kCPU);
    const int tag = static_cast<int>(exchanges_++ % 0x7fffffff);
    auto pending = start(host, received, [&](std::vector<WorkPointer>& works) {
      std::vector<at::Tensor> outgoing{out}, incoming{host};
      works.push_back(gloo_->send(outgoing, static_cast<int>(to), tag));
      works.push_back(gloo_->recv(incoming, static_cast<int>(from), tag));
    });
    return std::make_unique<KeepsSent>(std::move(pending), out);
  }

 private:
  // Keeps what is sent until it was.
  class KeepsSent : public Pending {
   public:
    KeepsSent(PendingPointer exchange, at::Tensor sent) : exchange_(std::move(exchange)), sent_(std::move(sent)) {}
    void wait() override {
      exchange_->wait();
      sent_.reset();
    }

   private:
    PendingPointer exchange_;
    at::Tensor sent_;
  };

  static at::Tensor on_host(const at::Tensor& tensor) { return tensor.is_cpu() ? tensor : tensor.cpu(); }

  WorkPointer broadcast_from(const at::Tensor& values, int64_t rank) {
    c10d::BroadcastOptions options;
    options.rootRank = rank;
    std::vector<at::Tensor> tensors{values};
    return gloo_->broadcast(tensors, options);
  }

  template <class Launch>
  PendingPointer start(const at::Tensor& host, const at::Tensor& target, const Launch& launch) {
    watch_.count_collectives();
    std::vector<WorkPointer> works;
    try {
      launch(works);
    } catch (const std::exception& error) {
      throw watch_.explain(error.what());
    }
    return std::make_unique<GlooPending>(watch_, std::move(works), host, target);
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  RankWatch& watch_;
  int64_t exchanges_ = 0; // the same on all ranks
};

} // namespace

std::unique_ptr<Group> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t ranks,
                                       std::chrono::milliseconds timeout, RankWatch& watch) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = c10::make_intrusive<Gloo::Options>(timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME"); // as in PyTorch
  options->devices.push_back(interface && *interface ? Gloo::createDeviceForInterface(interface)
                                                     : Gloo::createDefaultDevice());
  auto gloo = c10::make_intrusive<Gloo>(store, static_cast<int>(rank), static_cast<int>(ranks), std::move(options));
  return std::make_unique<GlooGroup>(std::move(gloo), watch);
}

} // namespace fvlm::dist
