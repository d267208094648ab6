// The engine's log: lines on standard error, so that standard output contains only data.
#pragma once
#include <fmt/format.h>

#include <string_view>

namespace fvlm {

enum class LogLevel { debug, info, warning, error };

void log_text(LogLevel level, std::string_view text);
void set_log_level(LogLevel minimum); // of standard error; log files get everything

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_text(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_text(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_text(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_text(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
}

} // namespace fvlm
