// A device of the tests' own: what it "records" it runs when it is told to replay, and copies only when somebody goes
// on behind them.
#pragma once
#include "device/runtime.h"

#include <stdexcept>
#include <utility>

namespace fvlm::train {

class Memoir : public device::CapturedGraph {
 public:
  explicit Memoir(std::function<void()> work) : work_(std::move(work)) {}
  void replay() override { work_(); }
  int64_t kernels() const override { return 7; }

 private:
  std::function<void()> work_;
};

class OwnMark : public device::Event {
 public:
  OwnMark(std::string name, std::vector<std::string>& log, std::function<void()> before = {})
      : name_(std::move(name)), log_(log), before_(std::move(before)) {}
  void wait() const override {
    log_.push_back("wait for " + name_);
    come_here();
  }
  double seconds_since(const Event&) const override { return 0; }
  void come_here() const {
    if (before_) std::exchange(before_, {})();
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::vector<std::string>& log_;
  mutable std::function<void()> before_;
};

class OwnRuntime : public device::Runtime {
 public:
  OwnRuntime() { device::use_runtime(this); }
  ~OwnRuntime() override { device::use_runtime(nullptr); }
  std::unique_ptr<device::CapturedGraph> capture(const std::function<void()>& work) override {
    if (refuses) throw std::runtime_error("something waits for the device");
    ++recorded;
    return std::make_unique<Memoir>(work);
  }
  bool is_capturing() const override { return false; }
  void run_on_side_stream(std::function<void()> work, int64_t) override { work(); }
  void join_side_stream() noexcept override {}
  std::shared_ptr<device::Event> record_event() override {
    return std::make_shared<OwnMark>("mark " + std::to_string(++marks), log);
  }
  std::shared_ptr<device::Event> copy_on_prefetch_stream(const device::Event& after,
                                                         const std::function<void()>& copies) override {
    const auto& before = dynamic_cast<const OwnMark&>(after);
    before.come_here();
    log.push_back("copy behind " + before.name());
    return std::make_shared<OwnMark>("copy " + std::to_string(++copied), log, copies);
  }
  void wait_event(const device::Event& mark) override {
    const auto& before = dynamic_cast<const OwnMark&>(mark);
    log.push_back("follow " + before.name());
    before.come_here();
  }
  void synchronize() override {}
  std::vector<device::Activity> profile(const std::function<void()>& work) override {
    return work(), std::vector<device::Activity>();
  }
  uint64_t now() const override { return 0; }

  int recorded = 0, marks = 0, copied = 0;
  bool refuses = false;
  std::vector<std::string> log; // of marks and copies
};

} // namespace fvlm::train
