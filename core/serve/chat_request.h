// Requests in the form of OpenAI's /v1/chat/completions, /v1/completions and /v1/responses.
#pragma once
#include "data/media/random_access.h"
#include "data/own_template.h"
#include "data/tile_grid.h"
#include "grammar/grammar.h"
#include "infer/sampling.h"
#include "infer/stop_rules.h"

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::serve {

struct RequestLimits {
  int64_t most_tokens = 4096; // of an answer, or the model's positions where these are more
  int64_t most_images = 64;   // 0: the model reads text alone
  int64_t most_answers = 8;   // n
  // What it takes to read the pictures and texts of a request, which holds up the answers of others.
  int64_t most_pixels = int64_t{96} << 20; // of all images together
  int64_t most_text = int64_t{1} << 20;    // bytes of all messages together
  int64_t most_messages = 4096;
  int64_t most_prompts = 256;           // of a request for continued texts, all of which wait at once
  int64_t most_inputs = 2048;           // of a request for embeddings
  bool has_images_beside_video = false; // in one request
  bool takes_parts = false; // the chat template gets the parts of a message; otherwise their texts, a line each
  std::optional<int64_t> max_tokens; // of an answer whose request sets none, where the server does
  // How answers are drawn whose requests do not say it.
  infer::Sampling usual_sampling = {.temperature = 1};
};

// Pictures of a conversation, prepared as the model reads them.
struct PromptFrames {
  at::Tensor frames;           // [n, 3, H, W] float32, normalised; undefined: none
  std::vector<TileGrid> tiles; // of each image, where images are cut
  bool is_one_image = false;   // which may be repeated
  int64_t copies = 1;          // see model::Sample
  std::string video_text;      // see Turn
};

// What the model may do besides answering in words.
struct OfferedTools {
  nlohmann::ordered_json list;     // as the template reads it
  std::optional<std::string> only; // it has to call this one, or, if empty, any of several
  bool parallel = true;            // it may call several at once
};

// A video among the files of a request.
struct RequestVideo {
  size_t first = 0;  // of its files
  size_t frames = 0; // that are its files; 0: it is one file, which has them
  double per_second = 1;
  // In place of the first of these files, which is empty then: one that is read where it lies, as it may be too large
  // for memory, and a name that no other file has.
  std::shared_ptr<const RandomAccess> source = nullptr;
  std::string source_name = {};
};

// How the vector of an input is wanted.
struct EmbeddingForm {
  int64_t dimensions = 0; // so many of its first numbers; 0: all
  bool is_base64 = false; // of float32
  bool normalize = true;  // to length 1
};

struct ChatRequest {
  std::string model;
  size_t adapter = 0;  // of the model (infer::Prompt)
  bool is_chat = true; // otherwise a text is continued, which is turns[0], or `tokens`
  std::vector<TokenId> tokens;
  bool echo = false;                 // the text that is continued opens the answer
  int64_t first_answer = 0;          // number of its first answer among those of all prompts of one request
  std::optional<std::string> system; // at the beginning; empty text: none; nothing: the model's usual one
  std::vector<Turn> turns;           // <image> in a user's text for each image of it
  std::vector<std::string> images;   // the files, in the order of their marks, a video's among them
  std::shared_ptr<const nlohmann::json> template_variables = {}; // see TemplateValues
  std::string reasoning_effort; // which turns thinking on or off, unless a variable does; empty: as the template has it
  bool includes_thoughts = true;                  // in the answer
  bool shows_special_tokens = false;              // in the answer: special_texts()
  bool spells_special_tokens = false;             // what the turns spell of them is the token
  std::shared_ptr<const OfferedTools> tools = {}; // null: none
  std::optional<RequestVideo> video;              // for which <video> stands
  std::optional<PromptFrames> frames;             // in place of `images`, where they are prepared already
  std::vector<std::string> stops;
  infer::StopRules stop_rules;
  std::shared_ptr<const grammar::Grammar> form = {}; // what an answer's text may be; null: anything
  infer::Sampling sampling;
  std::optional<int64_t> max_tokens; // 0: what is echoed alone
  int64_t answers = 1;
  bool stream = false, stream_usage = false;
  std::optional<int64_t> top_logprobs;    // of so many likeliest tokens besides the chosen one; nothing: none at all
  std::optional<EmbeddingForm> embedding; // what the model makes of the prompt is wanted, and no answer
  bool attention = false;                 // an extension: show where the model looks in the frames
  std::shared_ptr<const nlohmann::json> response_fields = {}; // of /v1/responses: what its answer says of the request
};

// Throw Error(usage) for what is not valid or not supported, at the field's name. Images and frames of videos are data
// URLs; nothing is fetched from a network or read from a file.
ChatRequest parse_chat(std::string_view body, const RequestLimits& limits);
ChatRequest parse_response(std::string_view body, const RequestLimits& limits);
// Of vLLM's /tokenize, a prompt or a conversation without pictures, and of its /detokenize, tokens.
ChatRequest parse_tokenize(std::string_view body, const RequestLimits& limits);
ChatRequest parse_detokenize(std::string_view body, const RequestLimits& limits);
// One for each input of /v1/embeddings; vectors have `width` numbers.
std::vector<ChatRequest> parse_embeddings(std::string_view body, const RequestLimits& limits, int64_t width);
// One for each prompt.
std::vector<ChatRequest> parse_completions(std::string_view body, const RequestLimits& limits);

} // namespace fvlm::serve
