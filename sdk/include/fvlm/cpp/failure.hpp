// fvlm/cpp/failure.hpp: how C++ code refuses and fails: a call throws Failure, supports() returns Support. Nothing here
// allocates.
//
// What a plugin's class throws, anywhere but in its destructor, never crosses the boundary. It becomes a status:
//   Failure(status, ...)              its status and its text
//   std::bad_alloc                    FVLM_ERROR_MEMORY, "out of host memory"
//   another std::exception            FVLM_ERROR_INTERNAL and its what()
//   anything else                     FVLM_ERROR_INTERNAL, "an exception of an unknown type"
// In supports() it becomes a refusal (score 0) with that text as the reason; in an optimizer's states() a count of -1,
// which the engine refuses; in a task of fvlm::sdk::parallel_for it is rethrown on the calling thread. A struct or an
// instance that is NULL, and a struct_size that is too small, is FVLM_ERROR_ARGUMENT before the class is called. A
// destructor that throws ends the process.
#ifndef FVLM_CPP_FAILURE_HPP
#define FVLM_CPP_FAILURE_HPP

#include <fvlm/abi.h>

#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

// The whole SDK has hidden visibility: two plugins with classes of the same name must not share a template's statics.
#define FVLM_SDK_BEGIN _Pragma("GCC visibility push(hidden)") namespace fvlm::sdk {
#define FVLM_SDK_END                                                                                                   \
  }                                                                                                                    \
  _Pragma("GCC visibility pop")

FVLM_SDK_BEGIN

// Thrown by a plugin's function. It becomes the status of the call and the text in the error sink, truncated to 511
// bytes.
class Failure : public std::exception {
 public:
  FVLM_PRINTF(3, 4) Failure(fvlm_status status, const char* format, ...) : status_(status) {
    va_list arguments;
    va_start(arguments, format);
    (void)std::vsnprintf(text_, sizeof text_, format, arguments);
    va_end(arguments);
  }
  const char* what() const noexcept override { return text_; }
  fvlm_status status() const noexcept { return status_; }

 private:
  fvlm_status status_;
  char text_[512];
};

// What supports() returns: `return refuse("head_dim %d not supported", d)` or `return accept(100, "tiles of 64")`.
struct Support {
  int score = 0;
  char reason[sizeof(fvlm_support::reason)] = "";
};

FVLM_PRINTF(1, 2)
inline Support refuse(const char* format, ...) {
  Support support;
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(support.reason, sizeof support.reason, format, arguments);
  va_end(arguments);
  return support;
}

FVLM_PRINTF(2, 3)
inline Support accept(int score, const char* format, ...) {
  Support support;
  support.score = score;
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(support.reason, sizeof support.reason, format, arguments);
  va_end(arguments);
  return support;
}

// Turns a refusal into a Failure, so that a call refuses what supports() refuses: `require(supports(query))`.
inline void require(const Support& support) {
  if (support.score <= 0) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s", support.reason);
}

// Writes a line to the engine's log. [any thread]
FVLM_PRINTF(3, 4)
inline void log(const fvlm_host* host, int level, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (host) host->log(host, level, text);
}

// The minimum size of a struct, which is its size in version 1.0: its maker may be that old. When a struct grows, its
// old size is added here as a specialization; code that reads a newer field checks FVLM_HAS(struct, field) first.
template <class Struct>
inline constexpr std::size_t min_struct_size = sizeof(Struct);

template <class Struct>
void check_struct(const Struct* value, const char* name) {
  if (!value) throw Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  if (value->struct_size < min_struct_size<Struct>) {
    throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected a struct_size of at least %zu but got %u", name,
                  min_struct_size<Struct>, static_cast<unsigned>(value->struct_size));
  }
}

// Runs body and turns whatever it throws into a status, so that no exception crosses the boundary.
template <class Body>
fvlm_status guarded(fvlm_error* error, const Body& body) noexcept {
  try {
    body();
    return FVLM_OK;
  } catch (const Failure& failure) {
    return fvlm_fail(error, failure.status(), "%s", failure.what());
  } catch (const std::bad_alloc&) {
    return fvlm_fail(error, FVLM_ERROR_MEMORY, "out of host memory");
  } catch (const std::exception& exception) {
    return fvlm_fail(error, FVLM_ERROR_INTERNAL, "%s", exception.what());
  } catch (...) {
    return fvlm_fail(error, FVLM_ERROR_INTERNAL, "an exception of an unknown type");
  }
}

FVLM_SDK_END

#endif
