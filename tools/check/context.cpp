#include "check/context.h"

#include "check/families.h"

namespace fvlm::check {

Outcome ok(std::string text) {
  return {State::ok, std::move(text)};
}
Outcome not_applicable(std::string why) {
  return {State::not_applicable, std::move(why)};
}
Outcome failed(std::string why) {
  return {State::failed, std::move(why)};
}

Context::Context(Subject& subject_, std::string kind_, at::Device device_, bool quick_)
    : subject(subject_), kind(std::move(kind_)), device(device_), quick(quick_),
      table_(kind.empty() ? nullptr : subject.complete_table(kind)) {}

fvlm_instance* Context::instance() {
  if (!instance_) {
    char text[512] = "";
    fvlm_error error{sizeof error, sizeof text, text};
    fvlm_instance_config config{sizeof config, {device.is_cuda() ? FVLM_CUDA : FVLM_CPU, 0}, host().abi()};
    fvlm_status status = base().create(&config, &instance_, &error);
    if (status != FVLM_OK) {
      instance_ = nullptr;
      throw RowAborted{State::not_applicable,
                       fmt::format("create() returned {} ({}): {}", status, status_name(status), text)};
    }
  }
  return instance_;
}

const std::vector<Trial>& Context::typical() {
  if (typical_.empty()) {
    auto candidates = typical_trials(*this);
    std::string why = "none of its operations is offered";
    for (const Trial& trial : candidates) {
      std::string no = refusal(*this, trial);
      if (no.empty())
        typical_.push_back(trial);
      else
        why = fmt::format("{}: {}", trial.label, no);
    }
    if (typical_.empty())
      throw RowAborted{State::not_applicable, "supports() says no to every ordinary shape; the last: " + why};
  }
  return typical_;
}

const std::vector<Trial>& Context::small() {
  if (small_.empty()) {
    small_ = typical();
    for (const Trial& trial : odd_trials(*this))
      if (refusal(*this, trial).empty()) small_.push_back(trial);
  }
  return small_;
}

const std::vector<Trial>& Context::parallel() {
  if (parallel_.empty()) {
    typical(); // throws where nothing is supported
    for (const Trial& trial : parallel_trials(*this))
      if (refusal(*this, trial).empty()) parallel_.push_back(trial);
    if (parallel_.empty()) parallel_ = typical_;
  }
  return parallel_;
}

Instance::Instance(Context& context, TestHost& host) : context_(context) {
  char text[512] = "";
  fvlm_error error{sizeof error, sizeof text, text};
  fvlm_instance_config config{sizeof config, {context.device.is_cuda() ? FVLM_CUDA : FVLM_CPU, 0}, host.abi()};
  fvlm_status status = context.base().create(&config, &instance_, &error);
  if (status != FVLM_OK)
    throw RowAborted{State::failed, fmt::format("create() returned {} ({}): {}", status, status_name(status), text)};
}

Instance::~Instance() {
  context_.base().destroy(instance_);
}

} // namespace fvlm::check
