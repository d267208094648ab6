// fvlm/cpp/parallel.hpp: runs a lambda on the engine's CPU threads.
#ifndef FVLM_CPP_PARALLEL_HPP
#define FVLM_CPP_PARALLEL_HPP

#include <fvlm/cpp/failure.hpp>

#include <atomic>
#include <cstdint>
#include <exception>

FVLM_SDK_BEGIN

// parallel_for(call.host, rows, 16, [&](int64_t begin, int64_t end) { ... }); see fvlm_host.parallel_for, which also
// says how a piece gets scratch memory. The first exception of a piece is rethrown here when all pieces are done.
template <class Body>
void parallel_for(const fvlm_host* host, std::int64_t count, std::int64_t grain, const Body& body) {
  if (count <= 0) return;
  struct Context {
    const Body& body;
    std::atomic<bool> failed{false};
    std::exception_ptr first{};
  } context{body};
  const auto piece = [](void* pointer, std::int64_t begin, std::int64_t end) {
    auto& shared = *static_cast<Context*>(pointer);
    try {
      shared.body(begin, end);
    } catch (...) {
      if (!shared.failed.exchange(true)) shared.first = std::current_exception();
    }
  };
  if (host) {
    host->parallel_for(host, count, grain > 0 ? grain : 1, piece, &context);
  } else {
    piece(&context, 0, count);
  }
  if (context.first) std::rethrow_exception(context.first);
}

FVLM_SDK_END

#endif
