#include "base/log.h"

#include "base/error.h"
#include "base/log_file.h"
#include "base/new_file.h"
#include "base/status_line.h"
#include "base/terminal.h"

#include <fmt/format.h>
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <unistd.h>
#include <utility>

namespace fvlm {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
  case LogLevel::debug:
    return spdlog::level::debug;
  case LogLevel::info:
    return spdlog::level::info;
  case LogLevel::warning:
    return spdlog::level::warn;
  case LogLevel::error:
    return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  static auto instance = [] {
    auto mode = color_on(STDERR_FILENO) ? spdlog::color_mode::always : spdlog::color_mode::never;
    auto made =
        std::make_shared<spdlog::logger>("fvlm", std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>(mode));
    made->set_pattern("%^%l%$: %v");
    made->set_level(spdlog::level::debug); // the levels are those of the sinks: a file gets everything
    made->sinks().front()->set_level(spdlog::level::info);
    return made;
  }();
  return *instance;
}

// Appends to a file that is opened by open_kept_file(), whose checks spdlog's own file sink lacks.
class KeptFileSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit KeptFileSink(const std::filesystem::path& path) : path_(path) {
    Descriptor fd = open_kept_file(path);
    file_ = fdopen(fd.get(), "a");
    if (!file_) fail_to_write(path, "open the file");
    fd.release();
  }
  ~KeptFileSink() override { std::fclose(file_); }
  KeptFileSink(const KeptFileSink&) = delete;
  KeptFileSink& operator=(const KeptFileSink&) = delete;

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    if (is_failing_) line.push_back('\n'); // a piece of the last line may be there
    formatter_->format(message, line);
    if (std::fwrite(line.data(), 1, line.size(), file_) != line.size()) report_failure(errno);
  }
  void flush_() override {
    if (std::fflush(file_) != 0)
      report_failure(errno);
    else
      is_failing_ = false;
  }
  // Once, until a line can be written again. By the other sink, since this one is locked.
  void report_failure(int error) {
    if (std::exchange(is_failing_, true)) return;
    StatusLine::step_aside();
    const std::string text =
        fmt::format("{}: lines of the log cannot be written and are lost: {}", path_.string(), std::strerror(error));
    logger().sinks().front()->log({logger().name(), spdlog::level::warn, text});
  }

  std::filesystem::path path_;
  std::FILE* file_;
  bool is_failing_ = false;
};

} // namespace

void log_text(LogLevel level, std::string_view text) {
  StatusLine::step_aside();
  std::fflush(stdout); // keeps the order where both streams go to the same file
  logger().log(to_spdlog(level), strip_control_characters(text)); // it may quote untrusted text
}

LogFile::LogFile(const std::filesystem::path& path) {
  auto sink = std::make_shared<KeptFileSink>(path);
  sink->set_pattern("%Y-%m-%d %H:%M:%S %l: %v");
  logger().sinks().push_back(std::move(sink));
  logger().flush_on(spdlog::level::trace);
}

LogFile::~LogFile() {
  logger().sinks().pop_back();
}

void LogFile::write(LogLevel level, std::string_view text) {
  const std::string clean = strip_control_characters(text);
  spdlog::details::log_msg line(logger().name(), to_spdlog(level), clean);
  logger().sinks().back()->log(line);
  logger().sinks().back()->flush();
}

void set_log_level(LogLevel minimum) {
  logger().sinks().front()->set_level(to_spdlog(minimum));
}

} // namespace fvlm
