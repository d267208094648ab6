// A load generator for `fvlm-engine serve`: requests whose answers are streamed, from clients that ask one after the
// other or at a rate, on one thread.
#pragma once
#include "bench/progress.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fvlm::bench {

struct HttpAddress {
  std::string host; // an IP address
  uint16_t port = 0;
  std::string token; // that requests present; empty: none
};
// Of "http://127.0.0.1:8000", "/v1" behind it or not. Throws Error(usage) for what is none.
HttpAddress address_of(const std::string& url);

struct LoadResult {
  double sent = 0, first = 0, done = 0; // seconds since the load began; `first`: of the answer's first piece
  int64_t prompt = 0, completion = 0;   // tokens, as the server counts them
  std::string text;                     // of the answer
  std::string problem;                  // empty: it was answered
  bool is_cut_off = false;              // the problem is that the connection was closed
};

// Who sends the requests: so many clients, each of which waits for its answer before it asks again, or, where `rate` is
// above 0, as many as it takes to send so many a second at random times (a Poisson process of the seed).
struct RequestTimes {
  int64_t clients = 1;
  double rate = 0;
  uint64_t seed = 0;
};

// Sends each of the bodies to /v1/chat/completions. Returns their results in the same order. `clients_cpu`, if not
// null, receives the processor time of all clients. Throws Interrupted where Ctrl-C was pressed.
std::vector<LoadResult> run_load(const HttpAddress& address, const std::vector<std::string>& bodies,
                                 const RequestTimes& arrivals, const Progress& progress, double* clients_cpu = nullptr);

// Sends one request whose answer is streamed, and waits for it.
LoadResult ask_once(const HttpAddress& address, const std::string& body);
// The body of a GET. Throws Error(device) where the server does not answer with status 200.
std::string http_get(const HttpAddress& address, const std::string& path);
// The figures of /metrics by their names, with labels where they have any.
std::map<std::string, double> read_metrics(const HttpAddress& address);

} // namespace fvlm::bench
