// Reads a Hugging Face tokenizer.json into a Tokenizer and rejects features that are not supported, by name.
#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer.h"
#include "data/unicode.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace fvlm {

using Json = nlohmann::json;

class TokenizerFile {
 public:
  explicit TokenizerFile(std::string where) : where_(std::move(where)) {}

  Tokenizer read(std::string_view text) {
    Json root = Json::parse(text, nullptr, false);
    if (root.is_discarded()) fail("it is not valid JSON", "take the tokenizer.json that came with the model");
    if (!root.is_object()) fail("a JSON object was expected at the top");
    read_added(member(root, "added_tokens", Json::array()));
    read_model(object(root, "model"));
    refuse_unless_null(root, "normalizer");
    read_pretokenizer(root);
    read_decoder(root);
    store_added_tokens();
    return std::move(tokenizer_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& advice = "") const {
    throw Error(ErrorKind::data, what).at(where_).advise(advice);
  }

  static Json member(const Json& parent, const char* key, const Json& fallback) {
    auto found = parent.find(key);
    return found == parent.end() || found->is_null() ? fallback : *found;
  }

  const Json& object(const Json& parent, const char* key) const {
    auto found = parent.find(key);
    if (found == parent.end() || !found->is_object()) fail(fmt::format("'{}' is missing or no object", key));
    return *found;
  }

  std::string text_of(const Json& value, const std::string& name) const {
    if (!value.is_string()) fail(fmt::format("'{}' must be a string", name));
    return value.get<std::string>();
  }

  bool flag(const Json& parent, const char* key, bool fallback) const {
    Json value = member(parent, key, fallback);
    if (!value.is_boolean()) fail(fmt::format("'{}' must be true or false", key));
    return value.get<bool>();
  }

  std::string type_of(const Json& parent, const std::string& name) const {
    if (!parent.is_object()) fail(fmt::format("'{}' must be an object", name));
    return text_of(member(parent, "type", ""), name + ".type");
  }

  void refuse_unless_null(const Json& parent, const char* key) const {
    Json value = member(parent, key, nullptr);
    if (!value.is_null())
      fail(fmt::format("{} '{}' is not supported: only tokenizers without one", key, type_of(value, key)));
  }

  TokenId id_of(const Json& value, const std::string& name) const {
    if (!value.is_number_integer()) fail(fmt::format("the id of {} must be a whole number", name));
    int64_t id = value.is_number_unsigned() ? static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), INT64_MAX))
                                            : value.get<int64_t>();
    if (id < 0 || id >= max_ids) fail(fmt::format("the id {} of {} is outside 0 .. {}", id, name, max_ids - 1));
    return static_cast<TokenId>(id);
  }

  // Maps a token from GPT-2's printable alphabet back to bytes. As in Hugging Face tokenizers, a token with a character
  // outside of that alphabet stands for itself.
  static std::string decode_byte_level(const std::string& content) {
    const ByteAlphabet& alphabet = byte_alphabet();
    ValidUtf8 valid(content);
    std::string_view text = valid.view();
    std::string bytes;
    for (size_t at = 0; at < text.size();) {
      Decoded decoded = decode_at(text, at);
      if (decoded.point >= alphabet.byte_of_point.size() || alphabet.byte_of_point[decoded.point] < 0) return content;
      bytes.push_back(static_cast<char>(alphabet.byte_of_point[decoded.point]));
      at += decoded.length;
    }
    return bytes;
  }

  void set_token(TokenId id, const std::string& content, bool special) {
    size_t index = static_cast<size_t>(id);
    if (index >= tokenizer_.bytes_.size()) {
      tokenizer_.bytes_.resize(index + 1);
      tokenizer_.known_.resize(index + 1);
      tokenizer_.special_.resize(index + 1);
    }
    std::string bytes = decode_byte_level(content);
    if (tokenizer_.known_[index] && tokenizer_.bytes_[index] != bytes)
      fail(fmt::format("the id {} stands for '{}' and for '{}'", id, tokenizer_.bytes_[index], bytes));
    tokenizer_.bytes_[index] = std::move(bytes);
    tokenizer_.known_[index] = true;
    if (special) tokenizer_.special_[index] = true;
  }

  void read_added(const Json& list) {
    if (!list.is_array()) fail("'added_tokens' must be a list");
    for (const Json& entry : list) {
      if (!entry.is_object()) fail("an entry of 'added_tokens' is no object");
      AddedToken token;
      token.content = text_of(member(entry, "content", nullptr), "added_tokens.content");
      if (token.content.empty()) fail("an added token has no content");
      token.id = id_of(member(entry, "id", nullptr), fmt::format("added token '{}'", token.content));
      token.single_word = flag(entry, "single_word", false);
      token.left_strip = flag(entry, "lstrip", false);
      token.right_strip = flag(entry, "rstrip", false);
      token.special = flag(entry, "special", false);
      token.normalized = flag(entry, "normalized", !token.special);
      added_.push_back(std::move(token));
    }
  }

  void read_model(const Json& model) {
    std::string type = text_of(member(model, "type", "BPE"), "model.type");
    if (type != "BPE") fail(fmt::format("model type '{}' is not supported: only BPE is", type));
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      Json value = member(model, key, nullptr);
      bool nothing = value.is_null() || (value.is_string() && value.get<std::string>().empty()) ||
                     (value.is_number() && value.get<double>() == 0);
      if (!nothing) fail(fmt::format("model.{} is not supported", key));
    }
    if (flag(model, "byte_fallback", false)) fail("model.byte_fallback is not supported: only byte-level BPE is");
    tokenizer_.model_.ignore_merges = flag(model, "ignore_merges", false);

    const Json& vocabulary = object(model, "vocab");
    std::unordered_map<std::string, TokenId> id_of_token;
    id_of_token.reserve(vocabulary.size());
    TokenId largest = -1;
    for (const auto& [content, value] : vocabulary.items()) {
      TokenId id = id_of(value, fmt::format("'{}'", content));
      largest = std::max(largest, id);
      id_of_token.emplace(content, id);
    }
    for (const AddedToken& token : added_) largest = std::max(largest, token.id);
    // Ids index arrays, so a small file must not cause an allocation for millions of ids.
    size_t entries = vocabulary.size() + added_.size();
    if (largest >= 0 && static_cast<size_t>(largest) >= 4 * entries + 1024)
      fail(fmt::format("the largest id is {}, far beyond the {} tokens there are", largest, entries));
    check_added_ids(id_of_token);
    for (const auto& [content, id] : id_of_token) set_token(id, content, false);
    for (const AddedToken& token : added_) set_token(token.id, token.content, token.special);

    const ByteAlphabet& alphabet = byte_alphabet();
    bool any = false;
    for (size_t byte = 0; byte < 256; ++byte) {
      std::string written;
      append_utf8(written, alphabet.point_of_byte[byte]);
      auto found = id_of_token.find(written);
      tokenizer_.model_.token_of_byte[byte] = found == id_of_token.end() ? -1 : found->second;
      any |= found != id_of_token.end();
    }
    if (!any) fail("the vocabulary holds no single byte: it is not a byte-level one");
    refuse_unknown_bytes(model);
    if (tokenizer_.model_.ignore_merges)
      for (const auto& [content, id] : id_of_token)
        tokenizer_.model_.whole_words.emplace(decode_byte_level(content), id);
    read_merges(member(model, "merges", nullptr), id_of_token);
  }

  void refuse_unknown_bytes(const Json& model) const {
    Json unknown = member(model, "unk_token", nullptr);
    if (unknown.is_null()) return;
    for (size_t byte = 0; byte < 256; ++byte) {
      bool in_text = byte < 0xF5 && byte != 0xC0 && byte != 0xC1; // other bytes never occur in UTF-8
      if (in_text && tokenizer_.model_.token_of_byte[byte] < 0)
        fail(fmt::format("the vocabulary lacks byte {:#04x}, and model.unk_token in its place is not supported", byte));
    }
  }

  // Hugging Face ignores the id of an added token: it uses the id in the vocabulary, or continues from its size.
  void check_added_ids(std::unordered_map<std::string, TokenId> id_of_token) const {
    auto next = static_cast<TokenId>(id_of_token.size());
    for (const AddedToken& token : added_) {
      auto [known, added] = id_of_token.emplace(token.content, next);
      if (added) ++next;
      if (token.id != known->second)
        fail(fmt::format("the id of added token '{}' is {}, and Hugging Face gives it {}", token.content, token.id,
                         known->second),
             "save the tokenizer with transformers, which writes the ids that it uses");
    }
  }

  void read_merges(const Json& merges, const std::unordered_map<std::string, TokenId>& id_of_token) {
    if (!merges.is_array()) fail("'model.merges' is missing or no list");
    tokenizer_.model_.merges.reserve(merges.size());
    int32_t rank = 0;
    for (const Json& entry : merges) {
      auto [left, right] = pair_of(entry, rank);
      auto id_in_vocabulary = [&](const std::string& token) {
        auto found = id_of_token.find(token);
        if (found == id_of_token.end())
          fail(fmt::format("merge {} names '{}', which is not in the vocabulary", rank, token));
        return found->second;
      };
      TokenId left_id = id_in_vocabulary(left), right_id = id_in_vocabulary(right),
              merged = id_in_vocabulary(left + right);
      if (!tokenizer_.model_.merges.insert(left_id, right_id, {rank, merged}))
        fail(fmt::format("merge {} ('{}' and '{}') stands there twice", rank, left, right));
      ++rank;
    }
  }

  // "a b", or ["a", "b"] in newer files.
  std::pair<std::string, std::string> pair_of(const Json& entry, int32_t rank) const {
    if (entry.is_string()) {
      const auto& text = entry.get_ref<const std::string&>();
      size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
        return {text.substr(0, space), text.substr(space + 1)};
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
      return {entry[0].get<std::string>(), entry[1].get<std::string>()};
    }
    fail(fmt::format("merge {} is no pair of tokens", rank));
  }

  void read_pretokenizer(const Json& root) {
    Json pre = member(root, "pre_tokenizer", nullptr);
    if (pre.is_null()) fail("there is no pre_tokenizer: byte-level BPE needs ByteLevel");
    std::vector<Json> steps{pre};
    if (type_of(pre, "pre_tokenizer") == "Sequence") {
      Json list = member(pre, "pretokenizers", nullptr);
      if (!list.is_array()) fail("'pre_tokenizer.pretokenizers' must be a list");
      steps.clear();
      for (const Json& step : list) steps.push_back(step);
    }
    tokenizer_.pretokenizer_.pattern = WordPattern::none;
    bool byte_level = false;
    for (const Json& step : steps) {
      std::string type = type_of(step, "pre_tokenizer");
      if (byte_level) fail(fmt::format("pre_tokenizer '{}' behind ByteLevel is not supported", type));
      if (type == "Digits")
        read_digits(step);
      else if (type == "Split")
        read_split(step);
      else if (type == "ByteLevel") {
        byte_level = true;
        tokenizer_.pretokenizer_.add_prefix_space = flag(step, "add_prefix_space", true);
        if (tokenizer_.pretokenizer_.add_prefix_space && tokenizer_.pretokenizer_.pattern != WordPattern::none)
          fail("ByteLevel with add_prefix_space behind Split is not supported");
        if (flag(step, "use_regex", true)) set_pattern(WordPattern::gpt2);
      } else
        fail(fmt::format("pre_tokenizer '{}' is not supported: only Digits, Split and ByteLevel are", type));
    }
    if (!byte_level) fail("the pre_tokenizer does not end with ByteLevel: only byte-level BPE is supported");
  }

  void set_pattern(WordPattern pattern) {
    if (tokenizer_.pretokenizer_.pattern != WordPattern::none)
      fail("two patterns one after the other are not supported");
    tokenizer_.pretokenizer_.pattern = pattern;
  }

  void read_digits(const Json& step) {
    if (!flag(step, "individual_digits", false)) fail("Digits with individual_digits = false is not supported");
    if (tokenizer_.pretokenizer_.pattern != WordPattern::none) fail("Digits behind Split is not supported");
    tokenizer_.pretokenizer_.split_digits = true;
  }

  void read_split(const Json& step) {
    Json pattern = member(step, "pattern", nullptr);
    std::string text = pattern.is_object() ? text_of(member(pattern, "Regex", ""), "Split.pattern.Regex") : "";
    if (text_of(member(step, "behavior", ""), "Split.behavior") != "Isolated" || flag(step, "invert", false))
      fail("Split is supported with behavior Isolated alone");
    for (WordPattern known : {WordPattern::gpt2, WordPattern::llama3})
      if (text == pattern_text(known)) return set_pattern(known);
    fail(fmt::format("the pattern of Split is not one that this engine knows: {}", text),
         "GPT-2's and Llama 3's patterns are supported");
  }

  void read_decoder(const Json& root) {
    Json decoder = member(root, "decoder", nullptr);
    if (decoder.is_null() || type_of(decoder, "decoder") != "ByteLevel")
      fail(fmt::format("decoder '{}' is not supported: only ByteLevel is",
                       decoder.is_null() ? "null" : type_of(decoder, "decoder")));
  }

  void store_added_tokens() {
    auto rest =
        std::stable_partition(added_.begin(), added_.end(), [](const auto& token) { return !token.normalized; });
    tokenizer_.added_normalized_ = AddedTokens({rest, added_.end()});
    tokenizer_.added_ = AddedTokens({added_.begin(), rest});
  }

  static constexpr int64_t max_ids = 1 << 24;
  std::string where_;
  std::vector<AddedToken> added_;
  Tokenizer tokenizer_;
};

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& where) {
  return TokenizerFile(where).read(json);
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  return from_json(read_file(path, uint64_t{256} << 20), path.string());
}

} // namespace fvlm
