// A fake device: work that it captures runs on replay, and copies of the prefetch stream run only when something waits
// for them.
#pragma once
#include "device/runtime.h"

#include <stdexcept>
#include <utility>

namespace fvlm::train {

class FakeGraph : public device::CapturedGraph {
 public:
  FakeGraph(std::function<void()> work, std::shared_ptr<bool> dropped)
      : work_(std::move(work)), dropped_(std::move(dropped)) {}
  void replay() override {
    if (*dropped_) throw std::logic_error("a graph that was dropped is replayed");
    work_();
  }
  int64_t kernels() const override { return 7; }
  bool is_dropped() const override { return *dropped_; }

 private:
  std::function<void()> work_;
  std::shared_ptr<bool> dropped_;
};

class FakeEvent : public device::Event {
 public:
  FakeEvent(std::string name, std::vector<std::string>& log, std::function<void()> before = {})
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

class FakeRuntime : public device::Runtime {
 public:
  FakeRuntime() { device::use_runtime(this); }
  ~FakeRuntime() override { device::use_runtime(nullptr); }
  std::unique_ptr<device::CapturedGraph> capture(const std::function<void()>& work) override {
    if (refuses) throw std::runtime_error("something waits for the device");
    ++recorded;
    if (!dropped_) dropped_ = std::make_shared<bool>(false);
    return std::make_unique<FakeGraph>(work, dropped_);
  }
  bool is_capturing() const override { return false; }
  bool drop_graphs() override {
    if (!dropped_) return false;
    *std::exchange(dropped_, nullptr) = true;
    ++drops;
    return true;
  }
  void run_on_side_stream(std::function<void()> work, int64_t) override { work(); }
  void join_side_stream() noexcept override {}
  std::shared_ptr<device::Event> record_event() override {
    return std::make_shared<FakeEvent>("mark " + std::to_string(++marks), log);
  }
  std::shared_ptr<device::Event> copy_on_prefetch_stream(const device::Event& after,
                                                         const std::function<void()>& copies) override {
    const auto& before = dynamic_cast<const FakeEvent&>(after);
    before.come_here();
    log.push_back("copy behind " + before.name());
    return std::make_shared<FakeEvent>("copy " + std::to_string(++copied), log, copies);
  }
  std::shared_ptr<device::Event> run_on_communication_stream(const std::function<void(void*)>& work) override {
    work(nullptr);
    return record_event();
  }
  void wait_event(const device::Event& mark) override {
    const auto& before = dynamic_cast<const FakeEvent&>(mark);
    log.push_back("follow " + before.name());
    before.come_here();
  }
  void synchronize() override {}
  void enter_thread() override {}
  std::vector<device::Activity> profile(const std::function<void()>& work) override {
    return work(), std::vector<device::Activity>();
  }
  uint64_t now() const override { return 0; }

  int recorded = 0, marks = 0, copied = 0, drops = 0;
  bool refuses = false;
  std::vector<std::string> log; // of events and copies

 private:
  std::shared_ptr<bool> dropped_; // whether the graphs that there are were dropped; null: there are none
};

} // namespace fvlm::train
