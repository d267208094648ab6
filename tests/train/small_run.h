// A run small enough to be repeated often: coloured shapes, a tiny model, three stages of a few steps.
#pragma once
#include "base/file.h"
#include "base/scratch_folder.h"
#include "base/text.h"
#include "data/media/normalise.h"
#include "model/weights/resolve_model.h"
#include "ops/reference.h"
#include "ops/reference_manifest.h"
#include "train/run.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <limits>

namespace fvlm::train {

namespace fs = std::filesystem;

inline std::string small_recipe() {
  return read_file(FVLM_SMALL_RECIPE);
}

class SmallRun : public testing::Test {
 protected:
  SmallRun() {
    at::set_num_threads(1); // its tensors are too small to share
    const std::string command = std::string(FVLM_MAKE_SHAPES) + " --out " + data().string() +
                                " --frames 2 --size 16 --samples captions=160,text=40,questions=160,pairs=80,"
                                "heldout/questions=12,heldout/pairs=8 >/dev/null 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    write_file_atomic(recipe(), small_recipe());
    registry_.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
  }

  void change_recipe(const std::string& from, const std::string& to) const {
    std::string text = read_file(recipe());
    const size_t place = text.find(from);
    ASSERT_NE(place, std::string::npos) << from;
    write_file_atomic(recipe(), text.replace(place, from.size(), to));
  }

  fs::path data() const { return scratch_.path() / "data"; }
  fs::path recipe() const { return scratch_.path() / "small.lua"; }
  fs::path folder(const std::string& name) const { return scratch_.path() / name; }

  recipe::Resolved resolved(const std::vector<std::string>& sets = {}) const {
    recipe::Request request;
    request.file = recipe();
    request.sets = sets;
    request.args = args_;
    request.read_model_directory = read_model_directory;
    request.args["data"] = data().string();
    return recipe::resolve(request);
  }

  TrainReport run(const std::string& name, const std::vector<std::string>& sets = {}, TrainRequest request = {}) {
    request.folder = folder(name);
    return train(resolved(sets), request, registry_);
  }

  // What a damaged pack's pixels become.
  static const NormalizationTable& not_a_number() {
    static const NormalizationTable table = [] {
      NormalizationTable values;
      for (auto& channel : values) channel.fill(std::numeric_limits<float>::quiet_NaN());
      return values;
    }();
    return table;
  }

  // Every file of a checkpoint with its content.
  static std::map<std::string, std::string> content(const fs::path& checkpoint) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(checkpoint))
      if (entry.is_regular_file()) files[fs::relative(entry.path(), checkpoint)] = read_file(entry.path());
    return files;
  }

  // The lines of metrics.jsonl without values that depend on time and machine.
  static std::vector<nlohmann::json> metrics(const fs::path& run) {
    std::vector<nlohmann::json> lines;
    for (const std::string& text : split(read_file(run / "metrics.jsonl"), '\n')) {
      if (text.empty()) continue;
      auto line = nlohmann::json::parse(text);
      for (auto value = line.begin(); value != line.end();) {
        const std::string& key = value.key();
        const bool of_the_moment = key.starts_with("time.") || key.ends_with("_per_second") ||
                                   key == "data_wait_share" || key.ends_with("memory_bytes") || key == "seconds";
        value = of_the_moment ? line.erase(value) : std::next(value);
      }
      lines.push_back(line);
    }
    return lines;
  }

  // The final weights of a run, and its metrics.
  void expect_equal_runs(const std::string& left, const std::string& right) const {
    for (const char* stage : {"align", "instruct", "prefer"}) {
      const StageFolder a(folder(left) / stage), b(folder(right) / stage);
      ASSERT_EQ(a.steps().empty(), b.steps().empty()) << stage;
      if (a.steps().empty()) continue;
      const fs::path one = a.of(a.steps().back()), other = b.of(b.steps().back());
      ASSERT_EQ(one.filename(), other.filename()) << stage;
      for (const char* file : {"vision/model.safetensors", "decoder/model.safetensors", "connector.safetensors",
                               "training_state/optimizer.safetensors"})
        EXPECT_TRUE(read_file(one / file) == read_file(other / file)) << stage << ": " << file;
    }
    const auto a = metrics(folder(left)), b = metrics(folder(right));
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i], b[i]) << "line " << i + 1;
  }

  ScratchFolder scratch_;
  std::map<std::string, std::string> args_; // of the recipe, besides its data
  Registry registry_{RegistryOptions{}};
};

} // namespace fvlm::train
