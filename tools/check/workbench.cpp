#include "check/workbench.h"

#include "check/probe.h"

#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <memory>

namespace fvlm::check {
namespace {

constexpr int64_t sink_guard = 256; // bytes behind an error sink

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

} // namespace

Workbench::Workbench(Context& context, const Variation& variation)
    : context_(context), variation_(variation), host_(variation.host ? *variation.host : context.host()),
      instance_(variation.instance ? variation.instance : context.instance()) {
  if (context.device.is_cuda() && !context.subject.built_in()) stream_.emplace();
}

Operand& Workbench::place(std::string name, at::IntArrayRef shape, at::ScalarType dtype, Rows rows) {
  Placement placement = variation_.placement;
  if (spreads(placement) && (rows == Rows::contiguous || shape.size() < 2)) placement = Placement::contiguous;
  if (variation_.write_protected) placement = Placement::page_end; // pages of its own
  return operands_.emplace_back(std::move(name), shape, dtype, context_.device, placement,
                                static_cast<int64_t>(operands_.size()) + 1);
}

void Workbench::poison(Operand& operand) {
  int64_t pattern = 0;
  for (int i = 0; i < 8; ++i) pattern = pattern << 8 | variation_.poison;
  auto window = operand.window(operand.storage_);
  switch (window.scalar_type()) {
  case at::kByte:
    window.fill_(static_cast<uint8_t>(pattern));
    break;
  case at::kShort:
    window.fill_(static_cast<int16_t>(pattern));
    break;
  case at::kInt:
    window.fill_(static_cast<int32_t>(pattern));
    break;
  default:
    window.fill_(pattern);
  }
}

Operand& Workbench::input(std::string name, const at::Tensor& content, Rows rows) {
  Operand& operand = place(std::move(name), content.sizes(), content.scalar_type(), rows);
  operand.view_.copy_(content);
  if (variation_.halved && at::isFloatingType(operand.dtype_)) operand.view_.mul_(0.5);
  return operand;
}

Operand& Workbench::input(std::string name, const at::Tensor& content, Rows rows, const at::Tensor& reordered) {
  Operand& operand = input(std::move(name), content, rows);
  operand.reordered_ = reordered;
  return operand;
}

Operand& Workbench::output(std::string name, at::IntArrayRef shape, at::ScalarType dtype, Rows rows) {
  Operand& operand = place(std::move(name), shape, dtype, rows);
  poison(operand);
  let_write(operand);
  return operand;
}

Operand& Workbench::updated(std::string name, const at::Tensor& content, Rows rows) {
  Operand& operand = input(std::move(name), content, rows);
  let_write(operand);
  return operand;
}

Operand& Workbench::alias(std::string name, Operand& other) {
  aliases_.emplace_back(std::move(name), &other);
  let_write(other);
  return other;
}

Operand& Workbench::output_over(Operand* other, std::string name, at::IntArrayRef shape, at::ScalarType dtype) {
  return other && variation_.alias ? alias(std::move(name), *other) : output(std::move(name), shape, dtype);
}

std::vector<Operand*> Workbench::saved(const std::string& name) {
  const fvlm_requirements& requirements = required_;
  if (requirements.saved_count > FVLM_MAX_SAVED)
    throw RowAborted{State::failed, fmt::format("requirements() asks for {} saved tensors, at most {} are allowed",
                                                requirements.saved_count, FVLM_MAX_SAVED)};
  std::vector<Operand*> tensors;
  for (uint32_t i = 0; i < requirements.saved_count; ++i) {
    const fvlm_tensor_spec& spec = requirements.saved[i];
    bool sane = spec.ndim >= 0 && spec.ndim <= FVLM_MAX_DIMS;
    for (int32_t d = 0; sane && d < spec.ndim; ++d) sane = spec.shape[d] >= 0;
    if (!sane)
      throw RowAborted{State::failed, fmt::format("requirements() asks for {}[{}] of an impossible shape", name, i)};
    Operand& operand =
        place(fmt::format("{}[{}]", name, i), at::IntArrayRef(spec.shape, static_cast<size_t>(spec.ndim)),
              scalar_type(spec.dtype), Rows::contiguous);
    if (!variation_.unguarded) poison(operand);
    let_write(operand);
    run_.saved += operand.view().numel() * static_cast<int64_t>(operand.view().element_size());
    tensors.push_back(&operand);
  }
  return tensors;
}

uint32_t Workbench::size_of_struct(size_t true_size, SizeFault who) const {
  if (variation_.size_fault == who) return variation_.faulty_size;
  return static_cast<uint32_t>(true_size + (variation_.size_fault == SizeFault::longer ? 64 : 0));
}

void Workbench::get_requirements(const std::function<fvlm_status(fvlm_requirements*, fvlm_error*)>& function) {
  // Guard bytes follow the struct, where a plugin built for a newer ABI might write.
  struct {
    fvlm_requirements value{};
    unsigned char behind[64];
  } guarded;
  std::fill_n(guarded.behind, sizeof guarded.behind, static_cast<unsigned char>(0xEE));
  guarded.value.struct_size = sizeof(fvlm_requirements);
  std::vector<char> sink = empty_sink(); // the plugin may write its first `error_capacity` bytes
  char* const text = sink.data();
  fvlm_error error{sizeof error, variation_.error_capacity, text};
  fvlm_status status = FVLM_ERROR_INTERNAL;
  try {
    const auto query = [&] { status = function(&guarded.value, variation_.error_sink ? &error : nullptr); };
    const WriteProtection protection(protected_ranges_except({}));
    if (variation_.watch)
      variation_.watch->around("requirements()", query);
    else
      query();
  } catch (...) {
    run_.violations.emplace_back(Violation::threw, "requirements() threw an exception");
  }
  check_sink("requirements()", sink);
  if (std::any_of(guarded.behind, guarded.behind + sizeof guarded.behind,
                  [](unsigned char byte) { return byte != 0xEE; }))
    run_.violations.emplace_back(Violation::past_end, "requirements() wrote past its struct");
  if (status == FVLM_OK) {
    if (variation_.flags & FVLM_DETERMINISTIC)
      guarded.value.backward_workspace =
          std::max(guarded.value.backward_workspace, guarded.value.deterministic_workspace);
    run_.workspace = static_cast<int64_t>(std::max(guarded.value.forward_workspace, guarded.value.backward_workspace));
    if (run_.workspace < 0 || run_.workspace > int64_t{1} << 40)
      throw RowAborted{State::failed, "requirements() asks for more than 1 TiB of workspace"};
    required_ = guarded.value;
    return;
  }
  run_.statuses.push_back({"requirements", status, text, 0});
}

std::vector<WriteProtection::Range> Workbench::protected_ranges_except(const std::vector<Operand*>& writes) {
  std::vector<WriteProtection::Range> ranges;
  if (!variation_.write_protected || !context_.device.is_cpu()) return ranges;
  for (const Operand& operand : operands_) {
    if (operand.name_.starts_with("the workspace")) continue;
    ranges.push_back({operand.pages_.data(), operand.pages_.size(), "the shape or strides of " + operand.name_});
    if (std::ranges::find(writes, &operand) == writes.end())
      ranges.push_back({operand.storage_.data_ptr(), static_cast<size_t>(operand.storage_.numel()), operand.name_});
  }
  for (const Pages& pages : structs_) ranges.push_back({pages.data(), pages.size(), "a struct of the call"});
  return ranges;
}

// An error sink whose capacity is followed by guard bytes.
std::vector<char> Workbench::empty_sink() const {
  std::vector<char> text(variation_.error_capacity + sink_guard, static_cast<char>(0xEE));
  if (variation_.error_capacity > 0) text[0] = 0;
  return text;
}

void Workbench::check_sink(const std::string& call, std::vector<char>& text) {
  const auto end = text.begin() + variation_.error_capacity;
  if (std::any_of(end, text.end(), [](char c) { return c != static_cast<char>(0xEE); }))
    run_.violations.emplace_back(Violation::past_end, call + " wrote past the error sink's capacity");
  else if (variation_.error_capacity > 0 && std::find(text.begin(), end, 0) == end)
    run_.violations.emplace_back(Violation::past_end, call + " left a text without its final 0 in the error sink");
  *end = 0;
}

Operand& Workbench::place_workspace(const std::string& name, uint64_t bytes) {
  // Between pages that are not there, where its end can be one and its beginning is aligned all the same.
  const bool between_guard_pages = variation_.placement == Placement::page_start ||
                                   (variation_.placement == Placement::page_end && bytes % 256 == 0);
  Operand& workspace =
      operands_.emplace_back("the workspace of " + name, at::IntArrayRef{static_cast<int64_t>(bytes)}, at::kByte,
                             context_.device, between_guard_pages ? variation_.placement : Placement::contiguous);
  if (!variation_.unguarded) poison(workspace);
  return workspace;
}

fvlm_status Workbench::status_of(const std::string& name, const std::function<fvlm_status()>& function) {
  try {
    if (!variation_.watch) return function();
    fvlm_status status = FVLM_ERROR_INTERNAL;
    variation_.watch->around(name + "()", [&] { status = function(); });
    return status;
  } catch (const std::exception& exception) {
    run_.violations.emplace_back(Violation::threw, fmt::format("{} threw an exception: {}", name, exception.what()));
  } catch (...) {
    run_.violations.emplace_back(Violation::threw, name + " threw an exception");
  }
  return FVLM_ERROR_INTERNAL;
}

bool Workbench::call(std::string name, uint64_t workspace,
                     const std::function<fvlm_status(const fvlm_call*)>& function) {
  std::vector<Operand*> writes = std::exchange(writes_of_next_call_, {});
  if (variation_.between) variation_.between();
  if (workspace > 0 && name == variation_.workspace_cut) --workspace;
  Operand* scratch = workspace > 0 ? &place_workspace(name, workspace) : nullptr;
  std::vector<char> text = empty_sink();
  fvlm_error error{sizeof error, variation_.error_capacity, text.data()};
  fvlm_call given{};
  given.flags = variation_.flags;
  given.device = device_of(context_.device);
  given.stream = stream_ ? stream_->get() : nullptr;
  given.workspace = scratch ? scratch->view_.data_ptr() : nullptr;
  given.workspace_size = workspace;
  given.random_seed = 42;
  given.host = host_.abi();
  given.error = variation_.error_sink ? &error : nullptr;
  fvlm_call* call = guarded_copy(given, SizeFault::call);

  std::vector<at::Tensor> before;
  if (!variation_.unguarded)
    for (const Operand& operand : operands_) before.push_back(operand.storage_.clone());

  fvlm_status status = FVLM_ERROR_INTERNAL;
  auto once = [&] {
    const WriteProtection protection(protected_ranges_except(writes));
    status = status_of(name, [&] { return function(call); });
    return status == FVLM_OK;
  };
  if (variation_.unguarded) {
    // What grew between two calls is the engine's: operands of this one.
    resident_base_ += bytes_resident() - resident_after_;
    reset_resident_peak();
  }
  if (variation_.captured) {
    if (scratch) writes.push_back(scratch);
    if (auto wrong = capture_and_replay(*call, once, writes, before); !wrong.empty())
      run_.violations.emplace_back(Violation::not_capturable, fmt::format("{}: {}", name, wrong));
    if (scratch) writes.pop_back();
  } else {
    if (variation_.prior_call != Variation::PriorCall::none) run_prior_call(once, writes, before);
    if (stream_) wait_for_device();
    if (variation_.record_races) track_piece_writes(name, writes);
    once();
    if (variation_.record_races) host_.between_pieces({});
    if (stream_) wait_for_device();
  }
  if (variation_.unguarded && context_.device.is_cpu()) {
    run_.peak = std::max(run_.peak, bytes_resident_peak() - resident_base_);
    resident_after_ = bytes_resident();
  }
  check_sink(name, text);
  run_.statuses.push_back({name, status, variation_.error_sink ? std::string(text.data()) : "", workspace});
  if (auto misuse = host_.take_misuse(); !misuse.empty())
    run_.violations.emplace_back(Violation::host_misused, name + " " + misuse);
  if (!variation_.unguarded) {
    if (scratch) writes.push_back(scratch);
    check_writes(name, status, writes, before);
    if (scratch) writes.pop_back();
  }
  if (status == FVLM_OK) {
    for (Operand* operand : writes)
      if (std::ranges::find(written_, operand, &std::pair<std::string, Operand*>::second) == written_.end())
        written_.emplace_back(operand->name(), operand);
    if (variation_.repeat > 0) {
      time(name, once);
      run_.statuses.back().value = status;
    }
  }
  return status == FVLM_OK;
}

void Workbench::run_prior_call(const std::function<bool()>& once, const std::vector<Operand*>& writes,
                               const std::vector<at::Tensor>& before) {
  const bool reordered = variation_.prior_call == Variation::PriorCall::reordered;
  for (Operand& operand : operands_) {
    if (operand.name_.starts_with("saved") || std::ranges::find(writes, &operand) != writes.end()) continue;
    if (reordered && operand.reordered_.defined())
      operand.view_.copy_(operand.reordered_);
    else if (reordered)
      operand.view_.copy_(operand.view_.reshape({-1}).flip({0}).view(operand.view_.sizes()));
    else if (at::isFloatingType(operand.dtype_))
      operand.view_.mul_(0.5);
  }
  if (stream_) wait_for_device();
  once();
  if (stream_) wait_for_device();
  for (size_t i = 0; i < before.size(); ++i) operands_[i].storage_.copy_(before[i]);
}

void Workbench::track_piece_writes(const std::string& call, const std::vector<Operand*>& writes) {
  struct TrackedOutput {
    Operand* operand;
    at::Tensor last, changed; // as it was at the last look; whether a piece of this parallel_for has changed it
  };
  auto tracked = std::make_shared<std::vector<TrackedOutput>>();
  for (Operand* operand : writes)
    tracked->push_back({operand, operand->storage_.clone(), at::zeros_like(operand->storage_, at::kBool)});
  host_.between_pieces([this, call, tracked](int64_t done) {
    for (TrackedOutput& one : *tracked) {
      const at::Tensor differs = one.operand->storage_ != one.last;
      one.last.copy_(one.operand->storage_);
      // Before its first piece the calling thread may write anything.
      if (done == 0) {
        one.changed.zero_();
        continue;
      }
      const at::Tensor twice = differs.logical_and(one.changed);
      if (twice.any().item<bool>() && !run_.violation(Violation::raced))
        run_.violations.emplace_back(Violation::raced,
                                     fmt::format("{}: two pieces of a parallel_for write {}, {} bytes of it", call,
                                                 one.operand->name_, twice.sum().item<int64_t>()));
      one.changed.logical_or_(differs);
    }
  });
}

void Workbench::time(const std::string& call, const std::function<bool()>& once) {
  constexpr double never = std::numeric_limits<double>::infinity();
  Timing timing{call, never, never};
  if (variation_.before_repeat) variation_.before_repeat();
  time(timing, once);
  if (variation_.after_repeat) variation_.after_repeat();
  if (timing.seconds < never) run_.timings.push_back(timing);
}

void Workbench::time(Timing& timing, const std::function<bool()>& once) const {
  // A call on a device only enqueues: so many are timed together, to the end of the last.
  const bool enqueues = context_.device.is_cuda();
  const int together = enqueues && !variation_.before_repeat ? 20 : 1;
  for (int i = 0; i < variation_.repeat; ++i) {
    if (enqueues) wait_for_device();
    const double start = seconds_of(CLOCK_MONOTONIC), cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (int call = 0; call < together; ++call)
      if (!once()) return;
    if (enqueues) wait_for_device();
    timing.cpu = std::min(timing.cpu, (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu) / together);
    timing.seconds = std::min(timing.seconds, (seconds_of(CLOCK_MONOTONIC) - start) / together);
  }
}

std::string Workbench::capture_and_replay(fvlm_call& given, const std::function<bool()>& once,
                                          const std::vector<Operand*>& writes, const std::vector<at::Tensor>& before) {
  GraphCapture capture;
  given.stream = capture.stream();
  given.flags |= FVLM_CAPTURING;
  if (auto wrong = capture.begin(); !wrong.empty()) return wrong;
  const bool done = once();
  if (auto wrong = capture.end(); !wrong.empty() && done) return wrong;
  if (!done) return "";
  run_.nodes = std::max(run_.nodes, capture.nodes());
  for (size_t i = 0; i < before.size(); ++i)
    if (!same_bytes(operands_[i].storage_, before[i]))
      return fmt::format("{} changed while the call was recorded: not all of it goes to the stream",
                         operands_[i].name_);
  if (auto wrong = capture.replay(); !wrong.empty()) return wrong;
  // Once more from the same beginning.
  std::vector<std::pair<Operand*, at::Tensor>> after;
  for (size_t i = 0; i < before.size(); ++i)
    if (Operand& operand = operands_[i]; std::ranges::find(writes, &operand) != writes.end()) {
      after.emplace_back(&operand, operand.storage_.clone());
      operand.storage_.copy_(before[i]);
    }
  if (auto wrong = capture.replay(); !wrong.empty()) return wrong;
  for (const auto& [operand, bytes] : after)
    if (!operand->name_.starts_with("the workspace") && !same_bytes(operand->storage_, bytes))
      return fmt::format("a second replay gives {} other bits than the first", operand->name_);
  return "";
}

void Workbench::check_writes(const std::string& call, int32_t status, const std::vector<Operand*>& writes,
                             const std::vector<at::Tensor>& before) {
  for (size_t i = 0; i < before.size(); ++i) {
    const Operand& operand = operands_[i];
    if (same_bytes(operand.storage_, before[i])) continue;
    const bool given = std::ranges::find(writes, &operand) != writes.end();
    at::Tensor after = operand.storage_;
    if (given && status == FVLM_OK) {
      // The elements may change; the guards and the gaps between rows may not.
      after = after.clone();
      operand.window(after).copy_(operand.window(before[i]));
      if (same_bytes(after, before[i])) continue;
    }
    const int64_t first = at::nonzero(after != before[i]).reshape({-1})[0].item<int64_t>();
    const int64_t begin = operand.offset_;
    int64_t extent = operand.view_.numel() > 0 ? static_cast<int64_t>(operand.view_.element_size()) : 0;
    if (extent)
      for (size_t d = 0; d < operand.shape_.size(); ++d)
        extent += (operand.shape_[d] - 1) * operand.strides_[d] * static_cast<int64_t>(operand.view_.element_size());
    std::string place;
    if (first < begin)
      place = fmt::format("byte {} before {}", begin - first, operand.name_);
    else if (first >= begin + extent)
      place = fmt::format("byte {} behind {}", first - begin - extent + 1, operand.name_);
    else if (!given || status != FVLM_OK)
      place = fmt::format("{} at byte {}", operand.name_, first - begin);
    else
      place = fmt::format("the gap between rows of {} at byte {}", operand.name_, first - begin);
    const bool scratch = operand.name_.starts_with("the workspace");
    const bool inside = first >= begin && first < begin + extent;
    if (!inside || (given && status == FVLM_OK))
      run_.violations.emplace_back(scratch ? Violation::past_workspace : Violation::past_end,
                                   fmt::format("{} wrote {}", call, place));
    else if (given && scratch)
      continue; // writing to the workspace before refusing is harmless
    else if (given)
      run_.violations.emplace_back(Violation::wrote_on_refusal,
                                   fmt::format("{} returned {} and had written {}", call, status_name(status), place));
    else
      run_.violations.emplace_back(Violation::input_changed, fmt::format("{} changed {}", call, place));
  }
}

Run Workbench::finish() {
  // On the host, whatever the device: everything that looks at a Run compares there.
  auto take = [&](const std::string& name, const Operand& operand) {
    run_.outputs.emplace_back(name, operand.view_.cpu().clone(at::MemoryFormat::Contiguous));
  };
  for (const auto& [name, operand] : written_) take(name, *operand);
  for (const auto& [name, operand] : aliases_) take(name, *operand);
  return std::move(run_);
}

} // namespace fvlm::check
