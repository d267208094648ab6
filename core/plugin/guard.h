// Calls a function of a plugin and turns every failure into an Error that names the plugin, the operation and the
// shapes.
#pragma once
#include "base/error.h"
#include "plugin/active_call.h"

#include <fvlm/abi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace fvlm {

// Debug mode: FVLM_PLUGIN_DEBUG=1, or set here. Each call gets copies of the workspace and of the host tensors that it
// may write, between guard zones, so that a write past the end of one, or into the gaps of a strided view, is an Error
// that names the tensor.
bool plugin_debug();
void set_plugin_debug(bool on);

// Memory between guard zones. Aligned to 256 bytes and filled with a pattern that is NaN in every float type.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes);
  void* data() const { return data_; }
  size_t size() const { return bytes_; }
  // The offset of an overwritten byte: from the end, or (negative) from the beginning. Empty where the zones are
  // intact.
  std::optional<std::ptrdiff_t> violation() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
  std::byte* data_;
};

// A fvlm_error that tolerates a plugin that does not terminate its text.
class ErrorSink {
 public:
  ErrorSink();
  fvlm_error* get() { return &error_; }
  std::string text() const; // with control characters replaced by spaces

 private:
  std::array<char, 1024> text_{};
  fvlm_error error_; // points into text_
};

// "float32 [128, 2, 64]", with strides where it is not contiguous; "null".
std::string describe(const fvlm_tensor* tensor);
std::string status_name(fvlm_status status);

// A call that the plugin refused with FVLM_ERROR_UNSUPPORTED before it wrote anything, so that another plugin can
// replace it.
struct UnsupportedCall : Error {
  using Error::Error;
  std::string plugin, words;      // "head_dim 80 not supported"
  const void* prepared = nullptr; // the ops::Prepared that made the call, if one did
};

namespace detail {

[[noreturn]] void fail_with_status(const std::string& plugin, std::string_view operation, fvlm_status status,
                                   const ErrorSink& sink, const std::string& shapes); // or UnsupportedCall
// For use in a catch block: reports the exception that is being handled.
[[noreturn]] void fail_with_exception(const std::string& plugin, std::string_view operation, const std::string& shapes);

// The guarded copies for one call in debug mode.
class GuardedArguments {
 public:
  GuardedArguments(const std::string& plugin, std::string_view operation);
  ~GuardedArguments();
  fvlm_tensor* guard(const std::string& name, fvlm_tensor* tensor);
  void* guard_workspace(void* workspace, uint64_t bytes, const fvlm_device& device);
  void finish(const std::function<std::string()>& shapes); // verifies and copies back; throws Error(plugin)

 private:
  struct Piece;
  std::string plugin_, operation_;
  std::vector<std::unique_ptr<Piece>> pieces_;
};

} // namespace detail

// Runs `call` (-> fvlm_status). A status other than FVLM_OK or an exception becomes an Error(plugin) with plugin,
// operation, the plugin's message, and the result of `shapes` (-> std::string), which is called only then. [step
// thread]
template <class Call, class Shapes>
void guard_call(const std::string& plugin, std::string_view operation, const ErrorSink& sink, Call&& call,
                Shapes&& shapes, const void* arguments = nullptr, ActiveCall::Describe describe = nullptr) {
  fvlm_status status = FVLM_OK;
  try {
    const ActiveCall mark(plugin, operation, arguments, describe);
    status = call();
  } catch (...) {
    detail::fail_with_exception(plugin, operation, shapes());
  }
  if (status != FVLM_OK) detail::fail_with_status(plugin, operation, status, sink, shapes());
}

// One line a tensor: "  q: float32 [128, 2, 64]".
template <class Arguments>
std::string describe_arguments(const Arguments& arguments) {
  std::string text;
  each_tensor(arguments, [&](const std::string& name, const fvlm_tensor* tensor) {
    if (tensor) text += "\n  " + name + ": " + describe(tensor);
  });
  return text;
}

// Calls a table function of the usual signature. Sets call.error for the duration of the call. [step thread]
template <class Query, class Arguments>
void invoke(const std::string& plugin, std::string_view operation,
            fvlm_status (*function)(fvlm_instance*, const fvlm_call*, const Query*, const Arguments*),
            fvlm_instance* instance, fvlm_call call, const Query& query, const Arguments& arguments) {
  ErrorSink sink;
  call.error = sink.get();
  auto shapes = [&] { return describe_arguments(arguments); };
  if (!plugin_debug()) {
    guard_call(
        plugin, operation, sink, [&] { return function(instance, &call, &query, &arguments); }, shapes, &arguments,
        describe_call<Arguments>);
    return;
  }
  detail::GuardedArguments guarded(plugin, operation);
  Arguments copy = arguments;
  each_output(copy, [&](const std::string& name, fvlm_tensor*& tensor) { tensor = guarded.guard(name, tensor); });
  call.workspace = guarded.guard_workspace(call.workspace, call.workspace_size, call.device);
  guard_call(
      plugin, operation, sink, [&] { return function(instance, &call, &query, &copy); }, shapes, &copy,
      describe_call<Arguments>);
  guarded.finish(shapes);
}

} // namespace fvlm
