// Error: the exception type of the engine. It says what is wrong, where, and what to do about it.
#pragma once
#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>

namespace fvlm {

// The kinds of errors. The value is the process's exit code, as documented in `fvlm-engine --help`.
enum class ErrorKind : int {
  internal = 1, // a bug in the engine
  usage = 2,
  recipe = 3,
  data = 4,
  plugin = 5,
  device = 6,
  output = 7,   // a file cannot be written: no permission, disk full
  diverged = 8, // a loss or a gradient is not finite, and training cannot continue
  stopped = 75, // stopped on request and resumable
};

// "data": the kind's name in JSON.
const char* kind_name(ErrorKind kind);

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string what);
  // With arguments, `what`, `where` and `advice` are formats of fmt.
  template <class First, class... Rest>
  Error(ErrorKind kind, fmt::format_string<First, Rest...> what, First&& first, Rest&&... rest)
      : Error(kind, fmt::format(what, std::forward<First>(first), std::forward<Rest>(rest)...)) {}

  // Sets where the user finds the cause: "recipe.lua:12", a path, a plugin's name.
  Error& at(std::string where);
  template <class First, class... Rest>
  Error& at(fmt::format_string<First, Rest...> where, First&& first, Rest&&... rest) {
    return at(fmt::format(where, std::forward<First>(first), std::forward<Rest>(rest)...));
  }
  // Sets what the user can do about it, as an imperative sentence.
  Error& advise(std::string advice);
  template <class First, class... Rest>
  Error& advise(fmt::format_string<First, Rest...> advice, First&& first, Rest&&... rest) {
    return advise(fmt::format(advice, std::forward<First>(first), std::forward<Rest>(rest)...));
  }

  const char* what() const noexcept override { return what_.c_str(); }
  ErrorKind kind() const { return kind_; }
  const std::string& where() const { return where_; }
  const std::string& advice() const { return advice_; }
  int exit_code() const { return static_cast<int>(kind_); }

  // "recipe.lua:12: unknown key 'lrr'\n  did you mean 'lr'?"
  std::string text() const;

 private:
  ErrorKind kind_;
  std::string what_, where_, advice_;
};

} // namespace fvlm
