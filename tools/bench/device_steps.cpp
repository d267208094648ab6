#include "bench/device_steps.h"

#include "device/probe.h"
#include "device/runtime.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace fvlm::bench {

DeviceSteps::DeviceSteps(Training& training, std::vector<Pack> packs) : training_(training), packs_(std::move(packs)) {
  stage_next();
}

void DeviceSteps::stage_next() {
  const Pack& pack = packs_[std::exchange(next_, (next_ + 1) % packs_.size())];
  staged_ = training_.gradient_computer().stage(pack.host, pack.counts, 1);
}

StepTime DeviceSteps::step() {
  device::Runtime* const gpu = device::runtime();
  const Stopwatch watch;
  training_.forward_backward(*staged_, untimed_);
  training_.optimize();
  if (!gpu) {
    const StepTime taken = watch.stop();
    stage_next();
    return taken;
  }
  stage_next();
  gpu->synchronize();
  return watch.stop();
}

nlohmann::ordered_json Sustained::json(int64_t samples) const {
  nlohmann::ordered_json json{{"steps", times.count()},
                              {"seconds", times.total() * 1e-3},
                              {"median_ms", times.median()},
                              {"samples_per_second", samples_per_second(samples)}};
  add_clocks(clocks, json);
  return json;
}

device::Clocks clocks_during(at::Device device, const std::function<void()>& work) {
  device::ReadClocks read = device::cpu_clocks();
  if (device.is_cuda()) {
    const device::CudaProbe probe = device::probe_cuda();
    const auto index = static_cast<size_t>(device.has_index() ? device.index() : 0);
    read = device::gpu_clocks(index < probe.devices.size() ? probe.devices[index].bus : "");
  }
  device::ClockSampler sampler(std::move(read));
  work();
  return sampler.stop();
}

void add_clocks(const device::Clocks& clocks, nlohmann::ordered_json& json) {
  const auto known = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  json["mean_mhz"] = known(clocks.megahertz);
  json["mean_watts"] = known(clocks.watts);
}

std::vector<std::string> clock_cells(const device::Clocks& clocks) {
  const auto cell = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.0f}", *value) : "not known";
  };
  return {cell(clocks.megahertz), cell(clocks.watts)};
}

} // namespace fvlm::bench
