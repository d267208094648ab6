// SampleRequests: samples as they lie on disk, in the forms that a recipe's `shards` names, as requests for answers.
#pragma once
#include "cli/answering_model.h"
#include "cli/options.h"
#include "data/samples/prompt_content.h"
#include "data/shards/shard_set.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace fvlm::cli {

// Adds --field and --root.
Options& with_sample_options(Options& options);

class SampleRequests {
 public:
  // Of the options --data, --field, --root and --prompt: the question of samples that have none.
  explicit SampleRequests(const ParsedOptions& parsed);

  int64_t size() const { return shards_.size(); }

  struct Opened {
    std::string key; // its custom_id, or else its place among all samples
    std::shared_ptr<const Shard> shard;
    ShardSample members;
    nlohmann::json json = {};               // of the sample; that of a request of a batch is its body
    std::optional<std::string> broken = {}; // why it cannot be used
  };
  // Throws ReadError for a failing disk.
  Opened open(int64_t number) const;

  struct Request {
    serve::ChatRequest request; // with turns and pictures alone
    std::optional<std::string> expected;
  };
  // Throws Error for a sample that is broken.
  Request request(const Opened& sample, const AnsweringModel& model) const;

 private:
  Request asked(Opened sample, const AnsweringModel& model) const;

  plan::Source source_;
  plan::Mix mix_; // with the question in it
  ShardSet shards_;
};

} // namespace fvlm::cli
