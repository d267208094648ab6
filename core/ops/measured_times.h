// What candidates took for a query, kept on disk: a start whose questions are those of an earlier one measures nothing.
// One small file a question, in the cache folder; a time is found again only where all that it hangs on is the same:
// engine, LibTorch, device, threads, the query, and the plugin's own file.
#pragma once
#include "ops/measure.h"
#include "plugin/selection.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <string>

namespace fvlm::ops {

class MeasuredTimes {
 public:
  explicit MeasuredTimes(at::Device device) : device_(device) {}

  // Remembered, or measured now and kept. `flags`: of the calls. A file that makes no sense, or cannot be written, is
  // told once and otherwise no matter. Throws Error for a candidate that fails. [setup]
  template <class Table>
  Measurement of(const Candidate<Table>& candidate, const typename KindOf<Table>::Query& query, uint32_t flags);

 private:
  Measurement remembered_or(const LoadedPlugin& plugin, const std::string& asked,
                            const std::function<double()>& measure);
  std::filesystem::path file_of(const std::string& question);
  nlohmann::json recall(const std::filesystem::path& file, const std::string& question);
  void keep(const std::filesystem::path& file, const std::string& question, const std::string& plugin,
            const nlohmann::json& time);
  void tell(const std::filesystem::path& file, const std::exception& error);
  const std::string& circumstances();
  const std::string& identity(const LoadedPlugin& plugin);

  at::Device device_;
  std::string circumstances_;
  std::map<std::string, std::string> identities_; // by the plugin's name
  bool told_ = false;
};

} // namespace fvlm::ops
