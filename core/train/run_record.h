// run.json: which run a folder holds. The run's id, which its checkpoints carry, and the plans that it was trained
// under, the newest last. It proves that a checkpoint belongs to the run that is resumed from it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace fvlm::train {

struct RunRecord {
  struct Plan {
    std::string hash;
    std::string changes; // against the plan before, for people; empty: none that anybody made
    bool operator==(const Plan&) const = default;
  };
  // Of a stage with packing.tokens = "memory": what was chosen when the run began, and stays for equal bits.
  struct Pack {
    int64_t tokens = 0, frames = 0;
    bool operator==(const Pack&) const = default;
  };
  std::string id; // empty: not known yet
  std::vector<Plan> plans;
  std::map<std::string, Pack> packs; // by stage

  bool has_plan(const std::string& hash) const;
  // The run is trained under this plan from here on.
  void accept(const std::string& hash, std::string changes);
  // Changes since a checkpoint of the plan `hash`: what a run resumed from it has to tell.
  std::vector<std::string> changes_since(const std::string& hash) const;

  std::string text() const;
  // Without an id and plans where there is no file, or with a warning where it is damaged.
  static RunRecord read(const std::filesystem::path& run);
  void write(const std::filesystem::path& run) const; // where it differs from what is there

  static std::string new_id();
};

} // namespace fvlm::train
