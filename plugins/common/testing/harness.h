// harness.h: what a plugin's own tests need: a host with real threads, a loaded library, calls, and tensors over
// vectors.
#pragma once

#include "common/testing/test_device.h"

#include <fvlm/cache.h>
#include <fvlm/fvlm.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace fvlm::testing {

// A host whose parallel_for runs on `threads` threads of its own.
class Host {
 public:
  using Kept = std::map<std::string, std::vector<char>>; // what plugins keep, by key

  // `kept`: where not null, the host offers fvlm/cache.h with it, which outlives it.
  explicit Host(int threads = 2, Kept* kept = nullptr) : threads_(threads), kept_(kept) {
    fvlm_host& host_ = table_.host;
    host_.struct_size = kept ? sizeof table_ : sizeof host_;
    host_.abi_major = FVLM_ABI_MAJOR;
    host_.abi_minor = FVLM_ABI_MINOR;
    host_.engine_version = "test";
    host_.log = [](const fvlm_host* host, std::int32_t, const char* text) { of(host).log_.emplace_back(text); };
    table_.cache_load = [](const fvlm_host* host, fvlm_device, const char* key, void* value, std::uint64_t size) {
      const auto found = of(host).kept_->find(key);
      if (found == of(host).kept_->end() || found->second.size() != size) return 0;
      std::memcpy(value, found->second.data(), size);
      return 1;
    };
    table_.cache_store = [](const fvlm_host* host, fvlm_device, const char* key, const void* value,
                            std::uint64_t size) {
      const char* bytes = static_cast<const char*>(value);
      (*of(host).kept_)[key] = {bytes, bytes + size};
    };
    host_.parallel_for = [](const fvlm_host* host, std::int64_t count, std::int64_t grain,
                            void (*task)(void*, std::int64_t, std::int64_t), void* context) {
      const std::int64_t pieces = std::max<std::int64_t>(
          1, std::min<std::int64_t>(reinterpret_cast<const Host*>(host)->threads_, count / grain));
      std::vector<std::thread> others;
      for (std::int64_t i = 1; i < pieces; ++i) {
        others.emplace_back([=] { task(context, count * i / pieces, count * (i + 1) / pieces); });
      }
      if (count > 0) task(context, 0, count / pieces);
      for (std::thread& thread : others) thread.join();
    };
    host_.parallel_threads = [](const fvlm_host* host) {
      return static_cast<std::int32_t>(reinterpret_cast<const Host*>(host)->threads_);
    };
  }
  const fvlm_host* get() const { return &table_.host; }
  // How many lines of the log hold the words.
  int lines_with(const char* words) const {
    return static_cast<int>(std::count_if(
        log_.begin(), log_.end(), [&](const std::string& line) { return line.find(words) != std::string::npos; }));
  }

 private:
  static Host& of(const fvlm_host* host) { return *const_cast<Host*>(reinterpret_cast<const Host*>(host)); }

  fvlm_caching_host table_{}; // has to be first: its address is cast to a Host
  int threads_;
  Kept* kept_;
  std::vector<std::string> log_;
};

// A library's function table of one kind, and an instance of it.
template <class Table>
class Plugin {
 public:
  Plugin(const char* library, const char* kind, const Host& host) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) throw std::runtime_error(dlerror());
    const auto entry = reinterpret_cast<fvlm_plugin_entry_function>(dlsym(handle, FVLM_PLUGIN_ENTRY));
    if (!entry) throw std::runtime_error("no entry point");
    plugin_ = entry(host.get());
    table_ = static_cast<const Table*>(plugin_->table(kind));
    if (!table_) throw std::runtime_error(std::string("no table for ") + kind);
    const fvlm_instance_config config{sizeof config, test_device().device, host.get()};
    if (table_->base.create(&config, &instance_, nullptr) != FVLM_OK) throw std::runtime_error("create failed");
  }
  ~Plugin() { table_->base.destroy(instance_); }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const Table* operator->() const { return table_; }
  fvlm_instance* instance() const { return instance_; }

 private:
  const fvlm_plugin* plugin_ = nullptr;
  const Table* table_ = nullptr;
  fvlm_instance* instance_ = nullptr;
};

template <class Query, class Table>
fvlm_support support_of(const Plugin<Table>& plugin, const Query& query) {
  fvlm_support support{};
  support.struct_size = sizeof support;
  plugin->supports(&query, &support);
  return support;
}

// A call with its workspace and error text.
class Call {
 public:
  explicit Call(const Host& host, std::uint64_t workspace = 0) : space_(workspace + 512, '\x7f') {
    error_ = {sizeof error_, sizeof text_, text_};
    call_.struct_size = sizeof call_;
    call_.flags = FVLM_DETERMINISTIC;
    call_.device = test_device().device;
    const auto address = reinterpret_cast<std::uintptr_t>(space_.data());
    call_.workspace = space_.data() + (256 - address % 256) % 256;
    call_.workspace_size = workspace;
    call_.host = host.get();
    call_.error = &error_;
  }
  const fvlm_call* get() const { return &call_; }
  fvlm_call* operator->() { return &call_; }
  std::string error() const { return text_; }
  // Whether the bytes around the workspace are unchanged.
  bool intact() const {
    const auto begin = static_cast<const char*>(call_.workspace) - space_.data();
    const auto end = begin + static_cast<std::ptrdiff_t>(call_.workspace_size);
    const auto same = [](char c) { return c == '\x7f'; };
    return std::all_of(space_.begin(), space_.begin() + begin, same) &&
           std::all_of(space_.begin() + end, space_.end(), same);
  }

 private:
  TestVector<char> space_;
  char text_[512] = "";
  fvlm_error error_{};
  fvlm_call call_{};
};

// A contiguous tensor over memory owned by someone else.
class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, fvlm_dtype dtype, std::vector<std::int64_t> shape) : shape_(std::move(shape)), strides_(shape_) {
    std::int64_t stride = 1;
    for (std::size_t d = shape_.size(); d-- > 0;) {
      strides_[d] = stride;
      stride *= shape_[d];
    }
    tensor_.data = stride ? data : nullptr;
    tensor_.device = test_device().device;
    tensor_.ndim = static_cast<std::int32_t>(shape_.size());
    tensor_.dtype = dtype;
  }
  fvlm_tensor* get() {
    tensor_.shape = shape_.data();
    tensor_.strides = strides_.data();
    return &tensor_;
  }
  void set_stride(int dimension, std::int64_t stride) { strides_[static_cast<std::size_t>(dimension)] = stride; }

 private:
  std::vector<std::int64_t> shape_, strides_;
  fvlm_tensor tensor_{};
};

inline constexpr fvlm_dtype f32{FVLM_FLOAT, 32, 1}, f16{FVLM_FLOAT, 16, 1}, f64{FVLM_FLOAT, 64, 1},
    bf16{FVLM_BFLOAT, 16, 1}, i64{FVLM_INT, 64, 1}, i32{FVLM_INT, 32, 1}, i8{FVLM_INT, 8, 1};

// Naive 16-bit conversions, implemented differently from those of the plugins.
inline float widen_bf16(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
inline float widen_f16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) value = mantissa ? std::nan("") : HUGE_VAL;
  return static_cast<float>(bits & 0x8000 ? -value : value);
}
// The nearest of all 65,536 values; ties go to the even code.
inline std::uint16_t narrow(float value, float (*widen)(std::uint16_t)) {
  if (std::isnan(value)) return 0x7fff;
  const bool negative = std::signbit(value);
  const double magnitude = std::fabs(static_cast<double>(value));
  int low = 0, high = 0x7fff; // positive codes are ordered up to infinity, and comparisons with NaN are false
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (widen(static_cast<std::uint16_t>(middle)) <= magnitude ? low : high) = middle;
  }
  double above = widen(static_cast<std::uint16_t>(high));
  const double below = widen(static_cast<std::uint16_t>(low));
  if (std::isinf(above)) above = below + (below - widen(static_cast<std::uint16_t>(low - 1)));
  const double down = magnitude - below, up = above - magnitude;
  const int code = down < up || (down == up && low % 2 == 0) ? low : high;
  return static_cast<std::uint16_t>(code | (negative ? 0x8000 : 0));
}

// Uniform in [-1, 1), the same on every platform.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 2 + 1) {}
  float operator()() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<float>(static_cast<std::int64_t>(state_) >> 40) / 8388608.0f;
  }

 private:
  std::uint64_t state_;
};

} // namespace fvlm::testing
