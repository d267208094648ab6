#include "plugin/active_call.h"

#include "base/error.h"
#include "plugin/dtype.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <unistd.h>
#include <utility>

namespace fvlm {
namespace {

struct HandledSignal {
  int number;
  const char* name;
  struct sigaction before;
};
HandledSignal handled_signals[] = {{SIGSEGV, "SIGSEGV", {}}, {SIGBUS, "SIGBUS", {}},   {SIGILL, "SIGILL", {}},
                                   {SIGFPE, "SIGFPE", {}},   {SIGABRT, "SIGABRT", {}}, {SIGTRAP, "SIGTRAP", {}}};

std::atomic<int> log_descriptor{-1};

thread_local const ActiveCall* current_call = nullptr;

// An alternate signal stack for this thread, because the crash may be a stack overflow.
class HandlerStack {
 public:
  HandlerStack() {
    stack_t there{};
    if (sigaltstack(nullptr, &there) != 0 || !(there.ss_flags & SS_DISABLE)) return; // the thread has one already
    memory_.reset(new char[bytes]);
    const stack_t own{memory_.get(), 0, bytes};
    if (sigaltstack(&own, nullptr) != 0) memory_.reset();
  }
  ~HandlerStack() {
    if (!memory_) return;
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }
  HandlerStack(const HandlerStack&) = delete;
  HandlerStack& operator=(const HandlerStack&) = delete;

 private:
  static constexpr size_t bytes = 64 << 10;
  std::unique_ptr<char[]> memory_;
};

// Writes the plugin and the operation first: formatting the arguments may crash, if the plugin has overwritten them.
void report(const ActiveCall& call, std::string_view did, std::string_view what, std::string_view advice) {
  const auto everywhere = [](const SignalText& text) {
    text.write_to(STDERR_FILENO);
    if (const int log = log_descriptor.load(); log >= 0) text.write_to(log);
  };
  SignalText first, shapes;
  first << "\nerror: the plugin '" << call.plugin << "' " << did << what << " in " << call.operation << "\n";
  everywhere(first);
  if (call.describe) {
    shapes << "  called with";
    call.describe(shapes, call.arguments);
    shapes << "\n";
  }
  shapes << "  " << advice << "\n";
  everywhere(shapes);
}

// Threads that share the work of a call often crash together: the first one reports and ends the process, the others
// wait.
std::atomic<bool> crashed{false};
thread_local bool crashed_here = false;

extern "C" void on_crash(int number) {
  const int error = errno;
  if (!crashed_here && crashed.exchange(true))
    for (;;) pause();
  HandledSignal* signal = std::ranges::find(handled_signals, number, &HandledSignal::number);
  if (!std::exchange(crashed_here, true))
    if (const ActiveCall* call = std::exchange(current_call, nullptr))
      report(*call, "crashed with ", signal->name,
             "remove it from the recipe's list for this kind, or report this to its author; the run can be resumed "
             "from its last checkpoint");
  sigaction(number, &signal->before, nullptr);
  errno = error;
  raise(number); // delivered to the previous handler once this one has returned
}

extern "C" void on_exit_of_plugin() {
  const ActiveCall* call = std::exchange(current_call, nullptr);
  if (!call) return;
  report(*call, "ended the process by exit()", "",
         "a plugin must not end the process; remove it from the recipe's list for this kind, or report this to its "
         "author; the run can be resumed from its last checkpoint");
  _exit(static_cast<int>(ErrorKind::plugin));
}

} // namespace

SignalText& SignalText::operator<<(std::string_view text) {
  const size_t taken = std::min(text.size(), bytes_.size() - size_);
  std::memcpy(bytes_.data() + size_, text.data(), taken);
  size_ += taken;
  return *this;
}

SignalText& SignalText::operator<<(int64_t number) {
  std::array<char, 24> digits;
  size_t first = digits.size();
  auto left = number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  do digits[--first] = static_cast<char>('0' + left % 10);
  while ((left /= 10) != 0);
  if (number < 0) digits[--first] = '-';
  return *this << std::string_view(digits.data() + first, digits.size() - first);
}

SignalText& SignalText::operator<<(const fvlm_tensor& tensor) {
  const char* code = dtype_code_name(tensor.dtype);
  *this << (code ? code : "dtype of bits ") << int64_t{tensor.dtype.bits} << " [";
  for (int32_t i = 0; i < std::min<int32_t>(tensor.ndim, FVLM_MAX_DIMS); ++i)
    *this << (i > 0 ? ", " : "") << tensor.shape[i];
  return *this << "]";
}

void SignalText::write_to(int descriptor) const {
  for (size_t written = 0; written < size_;) {
    const ssize_t count = write(descriptor, bytes_.data() + written, size_ - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    written += static_cast<size_t>(count);
  }
}

ActiveCall::ActiveCall(std::string_view of_plugin, std::string_view of_operation, const void* with, Describe how)
    : plugin(of_plugin), operation(of_operation), arguments(with), describe(how), before_(current_call) {
  thread_local const HandlerStack stack;
  current_call = this;
}

ActiveCall::ActiveCall(const ActiveCall* call)
    : ActiveCall(call ? call->plugin : std::string_view(), call ? call->operation : std::string_view(),
                 call ? call->arguments : nullptr, call ? call->describe : nullptr) {
  if (!call) current_call = before_;
}

ActiveCall::~ActiveCall() {
  current_call = before_;
}

const ActiveCall* ActiveCall::current() {
  return current_call;
}

void install_crash_handlers() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_handler = on_crash;
    action.sa_flags = SA_ONSTACK;
    for (HandledSignal& one : handled_signals) sigaction(one.number, &action, &one.before);
  });
  std::atexit(on_exit_of_plugin);
  std::at_quick_exit(on_exit_of_plugin);
}

CrashLog::CrashLog(const std::filesystem::path& file) {
  log_descriptor = open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
}

CrashLog::~CrashLog() {
  if (const int log = log_descriptor.exchange(-1); log >= 0) close(log);
}

} // namespace fvlm
