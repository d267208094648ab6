// Tracks which plugin each thread is calling, so that a crash or exit() inside a plugin is reported with the plugin,
// the operation and the tensors of the call.
#pragma once
#include "plugin/arguments.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace fvlm {

// Async-signal-safe text formatting: allocates nothing and truncates what does not fit.
class SignalText {
 public:
  SignalText& operator<<(std::string_view text);
  SignalText& operator<<(int64_t number);
  SignalText& operator<<(const fvlm_tensor& tensor); // "float32 [128, 2, 64]"
  void write_to(int descriptor) const;

 private:
  std::array<char, 2048> bytes_{};
  size_t size_ = 0;
};

// Marks the calling thread as being inside a plugin's call. The texts and arguments have to outlive it. [any thread]
class ActiveCall {
 public:
  using Describe = void (*)(SignalText& text, const void* arguments);
  ActiveCall(std::string_view plugin, std::string_view operation, const void* arguments = nullptr,
             Describe describe = nullptr);
  // For a pool thread that works on behalf of another thread's call; NULL: on behalf of none.
  explicit ActiveCall(const ActiveCall* call);
  ~ActiveCall();
  ActiveCall(const ActiveCall&) = delete;
  ActiveCall& operator=(const ActiveCall&) = delete;

  static const ActiveCall* current(); // of this thread; NULL outside plugins

  const std::string_view plugin, operation;
  const void* const arguments;
  const Describe describe;

 private:
  const ActiveCall* const before_;
};

// Installs handlers that report a crash (SIGSEGV, SIGABRT, ...) or an exit() inside a plugin's call on standard error.
// A crash then ends the process as it would have; an exit ends it with the exit code of plugin errors. exit() handlers
// run in reverse order, so this has to be called again after loading a library. [setup]
void install_crash_handlers();

// Appends crash reports to this file as well, for the lifetime of the object. One at a time. [setup]
class CrashLog {
 public:
  explicit CrashLog(const std::filesystem::path& file);
  ~CrashLog();
  CrashLog(const CrashLog&) = delete;
  CrashLog& operator=(const CrashLog&) = delete;
};

// ActiveCall::Describe for the arguments of any call.
template <class Arguments>
void describe_call(SignalText& text, const void* arguments) {
  const auto one = [&](const char* name, const fvlm_tensor* tensor) {
    if (tensor) text << "\n  " << name << ": " << *tensor;
  };
  const auto field = [&](const char* name, const auto& value) {
    if constexpr (std::is_array_v<std::remove_reference_t<decltype(value)>>)
      for (const fvlm_tensor* tensor : value) one(name, tensor);
    else
      one(name, value);
  };
  const auto& call = *static_cast<const Arguments*>(arguments);
  std::apply([&](const auto&... each) { (field(each.name, call.*each.member), ...); }, detail::fields_of(&call));
}

} // namespace fvlm
