// RecipeDraft: what `recipe new` decides about a recipe, and its Lua text.
#pragma once
#include "recipe/processor_overrides.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::cli {

struct RecipeDraft {
  struct Source {
    std::string pattern;
    bool text_only = false;
    std::map<std::string, std::string> fields = {}; // as in a recipe: parts of a sample by other names
    std::string held_out = {};                      // the share of its samples, a number, that is; empty: none
    int64_t samples = 1;                            // its weight beside others
  };

  std::string name;
  std::vector<std::string> about;           // lines of its head
  std::string directory;                    // of the model; empty: vision and decoder, with a new connector
  std::string vision, decoder;              // Hugging Face folders
  std::string connector = "foveated";       // between them
  int64_t lora_rank = 0;                    // 0: all parameters are trained
  std::vector<Source> train, held_out;      // held_out: none, nothing is evaluated
  std::optional<std::string> root;          // of paths in the sources' files
  std::optional<int64_t> image_size;        // where it is not the default for this model
  ProcessorOverrides limits;                // of images
  std::string mode;                         // to train in; empty: the connector's first
  std::string evaluation_mode;              // that of generation, where it is not the first; empty: the first
  std::optional<std::string> system;        // the system turn, where it is not the default
  std::optional<std::string> chat_template; // of the decoder's folder, else ChatML
  std::string objective = "next_token";     // or "dpo" for pairs, "kto" for judged answers, "contrastive"
  std::string measure = "loss";             // of held_out
  std::optional<int64_t> max_new_tokens;    // of an answer that is measured
  std::optional<int64_t> max_frames;        // where the default does not fit
  std::optional<int64_t> image_frames;      // to which a still image is repeated
  std::optional<int64_t> max_text_tokens;
  bool mask_history = false;        // of a conversation the last answer alone is learnt
  std::optional<int64_t> negatives; // of a retrieval sample, where it is not the default
  int64_t epochs = 1, batch = 16;

  int64_t samples() const; // of train
  int64_t steps() const;
  int64_t a_tenth() const; // of the steps, at least 1
  bool learns_preferences() const { return objective == "dpo" || objective == "kto"; }
  bool embeds() const { return objective == "contrastive"; }
  std::string lua() const;
};

} // namespace fvlm::cli
