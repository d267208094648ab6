#include "data/tokenizer.h"

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "data/normalization.h"
#include "data/own_template.h"
#include "data/pretokenizer.h"
#include "gguf/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fvlm::gguf {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// How llama.cpp takes a token.
enum Kind : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// What llama.cpp calls the ways of splitting a text into words.
struct Splitting {
  std::vector<std::string_view> patterns; // how those of Split begin, one after the other
  bool digits;                            // are words of their own
  std::optional<bool> ignore_merges;
  const char* name;
};

const std::vector<Splitting>& splittings() {
  using enum WordPattern;
  constexpr std::string_view breaks = R"([\r\n])", letters = "\\s?[A-Za-z\u00b5", marks = "\\s?[!-/:-~\uff01",
                             ideographs = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-";
  static const std::vector<Splitting> all = {
      {{pattern_text(gpt2)}, false, {}, "gpt-2"},
      {{pattern_text(gpt2)}, true, {}, "smollm"},
      {{pattern_text(llama3)}, false, true, "llama-bpe"},
      {{pattern_text(llama3)}, false, false, "dbrx"},
      {{pattern_text(qwen2)}, false, {}, "qwen2"},
      {{pattern_text(qwen3_5)}, false, {}, "qwen35"},
      {{pattern_text(tekken)}, false, {}, "tekken"},
      {{"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", pattern_text(deepseek3)},
       false,
       {},
       "deepseek-v3"},
      {{breaks, letters, marks, ideographs}, true, {}, "deepseek-llm"},
      {{breaks, letters, marks, pattern_text(trailing_space), ideographs}, true, {}, "deepseek-llm"}};
  return all;
}

Json member(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? Json() : *found;
}

// The steps of a normalizer, pre-tokenizer or post-processor, of which a sequence has several.
std::vector<Json> steps_of(const Json& root, const char* kind, const char* list) {
  const Json whole = member(root, kind), several = member(whole, list);
  if (several.is_array()) return several.get<std::vector<Json>>();
  return whole.is_null() ? std::vector<Json>() : std::vector{whole};
}

const Json* step_named(const std::vector<Json>& steps, const char* type) {
  const auto found = std::ranges::find_if(steps, [&](const Json& step) { return member(step, "type") == type; });
  return found == steps.end() ? nullptr : &*found;
}

class TokenizerKeys {
 public:
  // Reads it as the engine does first, which refuses what it does not support.
  TokenizerKeys(File& file, const fs::path& folder, int64_t vocabulary)
      : file_(file), folder_(folder), path_(folder / "tokenizer.json"), vocabulary_(vocabulary) {
    Tokenizer::from_file(path_).check_vocabulary_size(vocabulary, path_.string());
    root_ = read_json_object(path_, uint64_t{256} << 20);
    model_ = root_["model"];
    words_ = steps_of(root_, "pre_tokenizer", "pretokenizers");
    sentencepiece_ = member(model_, "byte_fallback") == true && !step_named(words_, "ByteLevel");
  }

  void add(const std::vector<int64_t>& end_tokens) {
    set("model", std::string(sentencepiece_ ? "llama" : "gpt2"));
    set("pre", sentencepiece_ ? std::string("default") : splitting());
    add_tokens();
    if (sentencepiece_) set("add_space_prefix", begins_with_space());
    add_special_tokens(end_tokens);
    if (const auto chat = chat_template_text(folder_, "default")) set("chat_template", *chat);
  }

 private:
  void set(const std::string& key, Value value) { file_.set(key_of(key), std::move(value)); }
  static std::string key_of(const std::string& key) {
    return (key == "chat_template" ? "tokenizer." : "tokenizer.ggml.") + key;
  }

  std::string splitting() const {
    std::vector<std::string> texts;
    for (const Json& step : words_)
      if (member(step, "type") == "Split") {
        const auto text = step.at("pattern").at("Regex").get<std::string>();
        texts.push_back(replace_all(replace_all(text, "\r", "\\r"), "\n", "\\n"));
      }
    const Json* bytes = step_named(words_, "ByteLevel");
    if (texts.empty() || (bytes && member(*bytes, "use_regex") != false))
      texts.emplace_back(pattern_text(WordPattern::gpt2));
    const bool digits = step_named(words_, "Digits"), ignores = member(model_, "ignore_merges") == true;
    const auto begins = [](const std::string& text, std::string_view begin) { return text.starts_with(begin); };
    for (const Splitting& each : splittings())
      if (each.digits == digits && each.ignore_merges.value_or(ignores) == ignores &&
          std::ranges::equal(texts, each.patterns, begins)) {
        if (bytes && member(*bytes, "add_prefix_space") == true)
          log_warning("{}: the first word of a text gets a space (add_prefix_space), and in llama.cpp it gets none",
                      path_.string());
        return each.name;
      }
    throw Error(ErrorKind::data, "llama.cpp does not know how this tokenizer splits a text into words")
        .at(path_.string())
        .advise("the tokenizers of GPT-2, SmolLM2, Llama 2 and 3, Qwen2, Mistral, Gemma and DeepSeek are known; "
                "`fvlm-engine serve` takes this one");
  }

  // Which merges come first is their order here, and a score of the merged token in SentencePiece.
  void add_tokens() {
    const auto count = static_cast<size_t>(vocabulary_);
    std::vector<std::string> texts(count), merges;
    std::vector<int32_t> kinds(count, unused);
    for (size_t i = 0; i < count; ++i) texts[i] = fmt::format("[PAD{}]", i);
    std::unordered_map<std::string, size_t> ids;
    for (const auto& [text, id] : model_["vocab"].items()) {
      if (text.find('\0') != std::string::npos) continue; // where llama.cpp would end the text
      const auto index = id.get<size_t>();
      texts[index] = text;
      kinds[index] = sentencepiece_ && is_byte(text) ? byte : normal;
      ids[text] = index;
    }
    for (const Json& token : member(root_, "added_tokens")) {
      const auto index = token["id"].get<size_t>();
      texts[index] = token["content"].get<std::string>();
      // A text has spaces, not SentencePiece's marks: such a token comes out of merges.
      const bool is_marks = sentencepiece_ && texts[index].find(Metaspace::mark) != std::string::npos;
      kinds[index] = member(token, "special") == true ? control : is_marks ? normal : user_defined;
      ids[texts[index]] = index;
    }
    if (const Json name = member(model_, "unk_token"); sentencepiece_ && name.is_string() && ids.contains(name))
      kinds[ids[name]] = unknown;

    std::vector<float> scores(count, static_cast<float>(-1.0 - static_cast<double>(model_["merges"].size())));
    float score = 0;
    for (const Json& merge : model_["merges"]) {
      const auto [left, right] = halves(merge);
      if (const auto found = ids.find(left + right); found != ids.end())
        scores[found->second] = std::max(scores[found->second], score);
      merges.push_back(fmt::format("{} {}", left, right));
      --score;
    }
    ids_ = std::move(ids);
    set("tokens", std::move(texts));
    set("token_type", std::vector<int32_t>(kinds.begin(), kinds.end()));
    if (sentencepiece_)
      set("scores", std::move(scores));
    else
      set("merges", std::move(merges));
  }

  // Of ["a", "b"], or of "a b" in older files.
  static std::pair<std::string, std::string> halves(const Json& merge) {
    if (merge.is_array()) return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ', 1);
    return {text.substr(0, space), text.substr(space + 1)};
  }

  static bool is_byte(const std::string& text) {
    return text.size() == 6 && text.starts_with("<0x") && text.ends_with(">");
  }

  bool begins_with_space() const {
    const Json* metaspace = step_named(words_, "Metaspace");
    return step_named(steps_of(root_, "normalizer", "normalizers"), "Prepend") ||
           (metaspace && member(*metaspace, "prepend_scheme") != "never");
  }

  std::optional<uint32_t> named(const char* name) const {
    const auto text = named_special_token(folder_, name);
    const auto found = text ? ids_.find(*text) : ids_.end();
    return found == ids_.end() ? std::nullopt : std::optional(static_cast<uint32_t>(found->second));
  }

  void add_special_tokens(const std::vector<int64_t>& end_tokens) {
    const auto begin = named("bos_token");
    auto end = named("eos_token");
    if (!end && !end_tokens.empty()) end = static_cast<uint32_t>(end_tokens.front());
    if (begin) set("bos_token_id", *begin);
    if (end) set("eos_token_id", *end);
    for (const int64_t id : end_tokens) // one more that ends an answer
      if (id != end) {
        set("eot_token_id", static_cast<uint32_t>(id));
        break;
      }
    if (const auto id = named("unk_token")) set("unknown_token_id", *id);
    if (const auto id = named("pad_token")) set("padding_token_id", *id);
    set("add_bos_token", begin && adds("add_bos_token", *begin, true));
    set("add_eos_token", end && adds("add_eos_token", *end, false));
  }

  // Whether a text gets the token at its begin or end: a template of tokenizer.json says so, or else
  // tokenizer_config.json.
  bool adds(const char* key, uint32_t id, bool at_begin) const {
    const auto steps = steps_of(root_, "post_processor", "processors");
    if (const Json* step = step_named(steps, "TemplateProcessing")) {
      const Json parts = member(*step, "single");
      if (!parts.is_array() || parts.empty()) return false;
      const Json name = member(member(at_begin ? parts.front() : parts.back(), "SpecialToken"), "id");
      const auto found = name.is_string() ? ids_.find(name) : ids_.end();
      return found != ids_.end() && found->second == id;
    }
    const fs::path config = folder_ / "tokenizer_config.json";
    return fs::exists(config) && member(read_json_object(config, uint64_t{16} << 20), key) == true;
  }

  File& file_;
  const fs::path folder_, path_;
  const int64_t vocabulary_;
  Json root_, model_;
  std::vector<Json> words_;
  bool sentencepiece_ = false;
  std::unordered_map<std::string, size_t> ids_;
};

} // namespace

void add_tokenizer(File& file, const fs::path& folder, int64_t vocabulary, const std::vector<int64_t>& end_tokens) {
  TokenizerKeys(file, folder, vocabulary).add(end_tokens);
}

} // namespace fvlm::gguf
