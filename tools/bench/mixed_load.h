// A mixed load, for robustness: clients that vanish, dawdle, and send nonsense or enormous requests, beside good ones,
// whose answers are compared with those that they had when the server was theirs alone.
#pragma once
#include "bench/progress.h"
#include "bench/server_process.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fvlm::bench {

struct MixedReport {
  struct Memory {
    double seconds = 0;
    int64_t bytes = 0; // resident, of the server
  };
  std::vector<Memory> memory;             // once a second
  std::map<std::string, int64_t> clients; // how many of each kind there were
  int64_t pages = 0, free_pages = 0, cached_pages = 0;
  std::vector<std::string> problems; // empty: all is as it should be

  // How much more the server has at the end than behind the warm-up, which takes a fifth of the time and two minutes at
  // least, as a share: the medians of the last and the first quarter of what is left are compared. 0 for less than four
  // minutes.
  double growth() const;
  std::string text() const;
  nlohmann::ordered_json json() const;
};

MixedReport run_mixed_load(const ServerProcess& server, double seconds, uint64_t seed, const Progress& progress);

} // namespace fvlm::bench
