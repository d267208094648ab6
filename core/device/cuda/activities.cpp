#include "device/cuda/activities.h"

#include "base/error.h"

#include <algorithm>
#include <cstdlib>
#include <cupti.h>
#include <cxxabi.h>

namespace fvlm::device {
namespace {

constexpr size_t buffer_bytes = 8 << 20, buffer_alignment = 8;
constexpr CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                        CUPTI_ACTIVITY_KIND_MEMSET};

void check(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  (void)cuptiGetResultString(result, &text);
  throw Error(ErrorKind::device, "cannot profile the device: {}: {}", what, text ? text : "?")
      .advise("another profiler may be running, or the driver restricts profiling to administrators");
}

std::string plain_name(const char* mangled) {
  int status = 0;
  char* text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? text : mangled;
  std::free(text);
  return name;
}

const char* name_of_copy(uint8_t kind) {
  if (kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD) return copy_to_device;
  return kind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? copy_to_host : "memcpy";
}

std::vector<Activity>* recorded = nullptr; // by the watch_activities() that is running

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(buffer_alignment, buffer_bytes));
  *size = *buffer ? buffer_bytes : 0;
  *max_records = 0; // no limit
}

void CUPTIAPI read_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  while (recorded && valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      recorded->push_back({plain_name(kernel->name), kernel->start, kernel->end});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      recorded->push_back({name_of_copy(copy->copyKind), copy->start, copy->end});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* set = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      recorded->push_back({"memset", set->start, set->end});
    }
  }
  std::free(buffer);
}

} // namespace

std::vector<Activity> watch_activities(const std::function<void()>& work) {
  std::vector<Activity> activities;
  check(cuptiActivityRegisterCallbacks(give_buffer, read_buffer), "callbacks");
  for (const CUpti_ActivityKind kind : kinds) check(cuptiActivityEnable(kind), "enabling");
  check(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "flushing");
  recorded = &activities;
  const auto end = [&] {
    const CUptiResult flushed = cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    recorded = nullptr;
    for (const CUpti_ActivityKind kind : kinds) (void)cuptiActivityDisable(kind);
    return flushed;
  };
  try {
    work();
  } catch (...) {
    (void)end();
    throw;
  }
  check(end(), "flushing");
  std::ranges::sort(activities, {}, &Activity::begin);
  return activities;
}

uint64_t activity_clock() {
  uint64_t now = 0;
  check(cuptiGetTimestamp(&now), "its clock");
  return now;
}

} // namespace fvlm::device
