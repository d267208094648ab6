// A disk cache of what measure() returned, so that a run with the same queries as an earlier one need not measure
// again. One small file for each query in the cache folder. A cached time is used only where everything that it depends
// on is the same: engine, LibTorch, device, threads, the query, and the plugin's library.
#pragma once
#include "ops/measure.h"
#include "plugin/selection.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <string>

namespace fvlm::ops {

class TimingCache {
 public:
  explicit TimingCache(at::Device device) : device_(device) {}

  // The cached time, else one that is measured now and cached. `flags`: of each fvlm_call. A cache file that is invalid
  // or cannot be written causes one warning and is ignored. Throws Error where the candidate fails. [setup]
  template <class Table>
  Measurement of(const Candidate<Table>& candidate, const typename KindOf<Table>::Query& query, uint32_t flags);

 private:
  Measurement cached_or_measured(const LoadedPlugin& plugin, const std::string& query_text,
                                 const std::function<double()>& measure);
  std::filesystem::path file_of(const std::string& question);
  nlohmann::json load(const std::filesystem::path& file, const std::string& question);
  void store(const std::filesystem::path& file, const std::string& question, const std::string& plugin,
             const nlohmann::json& time);
  void warn_once(const std::filesystem::path& file, const std::exception& error);
  const std::string& environment();
  const std::string& identity(const LoadedPlugin& plugin);

  at::Device device_;
  std::string environment_;
  std::map<std::string, std::string> identities_; // by plugin name
  bool warned_ = false;
};

} // namespace fvlm::ops
