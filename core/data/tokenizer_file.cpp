// Reads a Hugging Face tokenizer.json into a Tokenizer and rejects features that are not supported, by name.
#include "base/file.h"
#include "data/normalization.h"
#include "data/tokenizer.h"
#include "data/tokenizer_json.h"
#include "data/unicode.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>

namespace fvlm {

class TokenizerFile : private TokenizerJson {
 public:
  explicit TokenizerFile(std::string where) : TokenizerJson(std::move(where)) {}

  Tokenizer read(std::string_view text) {
    Json root = Json::parse(text, nullptr, false);
    if (root.is_discarded()) fail("it is not valid JSON", "take the tokenizer.json that came with the model");
    if (!root.is_object()) fail("a JSON object was expected at the top");
    // SentencePiece's form, characters and byte_fallback: nothing splits the text, or Metaspace does.
    const Json pre = member(root, "pre_tokenizer", nullptr);
    tokenizer_.sentencepiece_ = flag(object(root, "model"), "byte_fallback", false) &&
                                (pre.is_null() || metaspace_of(pre) || splits_at_no_space(root));
    read_normalizer(root);
    read_added(member(root, "added_tokens", Json::array()));
    read_model(object(root, "model"));
    read_pretokenizer(root);
    read_decoder(root);
    store_added_tokens();
    return std::move(tokenizer_);
  }

 private:
  void read_normalizer(const Json& root) {
    Json normalizer = member(root, "normalizer", nullptr);
    if (normalizer.is_null()) return;
    std::vector<Json> steps{normalizer};
    if (type_of(normalizer, "normalizer") == "Sequence") {
      Json list = member(normalizer, "normalizers", nullptr);
      if (!list.is_array()) fail("'normalizer.normalizers' must be a list");
      steps.assign(list.begin(), list.end());
    }
    for (const Json& step : steps) tokenizer_.normalizers_.push_back(normalizer_of(step));
  }

  Normalizer normalizer_of(const Json& step) const {
    const std::string type = type_of(step, "normalizer");
    if (type == "NFC") return {Normalizer::Kind::nfc, "", ""};
    if (type == "Prepend") return {Normalizer::Kind::prepend, "", text_of(member(step, "prepend", nullptr), "prepend")};
    if (type != "Replace")
      fail(fmt::format("normalizer '{}' is not supported: only NFC, Prepend and Replace are", type));
    const std::string from = string_pattern(step, "normalizer");
    return {Normalizer::Kind::replace, from, text_of(member(step, "content", nullptr), "normalizer.content")};
  }

  // The pattern of Replace, which is supported as a string.
  std::string string_pattern(const Json& step, const std::string& name) const {
    const Json pattern = member(step, "pattern", nullptr);
    const Json text = pattern.is_object() ? member(pattern, "String", nullptr) : Json();
    if (!text.is_string() || text.get<std::string>().empty())
      fail(fmt::format("{}: Replace is supported with a string as its pattern", name));
    return text.get<std::string>();
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

  // <0x0A> stands for a byte; in other tokens, marks stand for spaces.
  std::string decode_sentencepiece(size_t id, const std::string& content) {
    for (int byte = 0; content.size() == 6 && byte < 256; ++byte)
      if (content == fmt::format("<0x{:02X}>", byte)) {
        tokenizer_.byte_[id] = true;
        return {static_cast<char>(byte)};
      }
    return replace_all(content, Metaspace::mark, " ");
  }

  // An added token is decoded as added, even where its normalized form differs from what the vocabulary has.
  void set_token(TokenId id, const std::string& content, bool special, bool added = false) {
    size_t index = static_cast<size_t>(id);
    if (index >= tokenizer_.bytes_.size()) {
      tokenizer_.bytes_.resize(index + 1);
      tokenizer_.known_.resize(index + 1);
      tokenizer_.special_.resize(index + 1);
      tokenizer_.byte_.resize(index + 1);
    }
    std::string bytes = tokenizer_.sentencepiece_ ? decode_sentencepiece(index, content) : decode_byte_level(content);
    if (!added && tokenizer_.known_[index] && tokenizer_.bytes_[index] != bytes)
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
    if (type != "BPE") fail(fmt::format("model type '{}' is not supported: only BPE is", type), advice);
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      Json value = member(model, key, nullptr);
      bool nothing = value.is_null() || (value.is_string() && value.get<std::string>().empty()) ||
                     (value.is_number() && value.get<double>() == 0);
      if (!nothing) fail(fmt::format("model.{} is not supported", key));
    }
    const bool byte_fallback = flag(model, "byte_fallback", false);
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
    for (AddedToken& token : added_) {
      if (token.normalized) token.content = normalize(tokenizer_.normalizers_, ValidUtf8(token.content).view());
      set_token(token.id, token.content, token.special, true);
    }

    if (tokenizer_.sentencepiece_)
      read_characters(id_of_token);
    else
      read_bytes(model, id_of_token, byte_fallback);
    if (tokenizer_.model_.ignore_merges)
      for (const auto& [content, id] : id_of_token)
        tokenizer_.model_.whole_words.emplace(tokenizer_.sentencepiece_ ? content : decode_byte_level(content), id);
    read_merges(member(model, "merges", nullptr), id_of_token);
  }

  void read_characters(const std::unordered_map<std::string, TokenId>& id_of_token) {
    tokenizer_.model_.begins_with_characters = true;
    for (int byte = 0; byte < 256; ++byte) {
      auto found = id_of_token.find(fmt::format("<0x{:02X}>", byte));
      if (found == id_of_token.end())
        fail(fmt::format("model.byte_fallback needs the token <0x{:02X}>, "
                         "which the vocabulary lacks",
                         byte));
      tokenizer_.model_.token_of_byte[static_cast<size_t>(byte)] = found->second;
    }
    for (const auto& [content, id] : id_of_token)
      if (!content.empty() && ValidUtf8(content).view() == content && decode_at(content, 0).length == content.size())
        tokenizer_.model_.token_of_character.emplace(content, id);
  }

  void read_bytes(const Json& model, const std::unordered_map<std::string, TokenId>& id_of_token, bool byte_fallback) {
    const ByteAlphabet& alphabet = byte_alphabet();
    bool any = false;
    for (size_t byte = 0; byte < 256; ++byte) {
      std::string written;
      append_utf8(written, alphabet.point_of_byte[byte]);
      auto found = id_of_token.find(written);
      tokenizer_.model_.token_of_byte[byte] = found == id_of_token.end() ? -1 : found->second;
      any |= found != id_of_token.end();
    }
    if (!any) fail("the vocabulary holds no single byte: it is not a byte-level one", advice);
    refuse_unknown_bytes(model, byte_fallback);
  }

  // With a token for every byte, neither unk_token nor byte_fallback is ever used.
  void refuse_unknown_bytes(const Json& model, bool byte_fallback) const {
    if (member(model, "unk_token", nullptr).is_null() && !byte_fallback) return;
    for (size_t byte = 0; byte < 256; ++byte) {
      bool in_text = byte < 0xF5 && byte != 0xC0 && byte != 0xC1; // other bytes never occur in UTF-8
      if (in_text && tokenizer_.model_.token_of_byte[byte] < 0)
        fail(fmt::format("the vocabulary lacks byte {:#04x}, and model.{} in "
                         "its place is not supported",
                         byte, byte_fallback ? "byte_fallback" : "unk_token"));
    }
  }

  // Hugging Face ignores the id of an added token: it uses the id in the vocabulary, or continues from its size.
  void check_added_ids(std::unordered_map<std::string, TokenId> id_of_token) const {
    auto next = static_cast<TokenId>(id_of_token.size());
    for (const AddedToken& token : added_) {
      auto [known, added] = id_of_token.emplace(token.content, next);
      if (added) ++next;
      if (token.id != known->second)
        fail(fmt::format("the id of added token '{}' is {}, and Hugging Face "
                         "gives it {}",
                         token.content, token.id, known->second),
             "save the tokenizer with transformers, which writes the ids that "
             "it uses");
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
    if (tokenizer_.sentencepiece_) {
      if (const auto metaspace = metaspace_of(pre)) tokenizer_.pretokenizer_.metaspace = read_metaspace(*metaspace);
      return;
    }
    if (pre.is_null()) fail("there is no pre_tokenizer: byte-level BPE needs ByteLevel", advice);
    std::vector<Json> steps{pre};
    if (type_of(pre, "pre_tokenizer") == "Sequence") {
      Json list = member(pre, "pretokenizers", nullptr);
      if (!list.is_array()) fail("'pre_tokenizer.pretokenizers' must be a list");
      steps.clear();
      for (const Json& step : list) steps.push_back(step);
    }
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
        const auto is_split = [](const WordSplit& split) { return split.pattern != WordPattern::digits; };
        tokenizer_.pretokenizer_.add_prefix_space = flag(step, "add_prefix_space", true);
        if (tokenizer_.pretokenizer_.add_prefix_space && std::ranges::any_of(tokenizer_.pretokenizer_.splits, is_split))
          fail("ByteLevel with add_prefix_space behind Split is not supported");
        tokenizer_.pretokenizer_.splits_as_gpt2 = flag(step, "use_regex", true);
      } else
        fail(fmt::format("pre_tokenizer '{}' is not supported: only Digits, "
                         "Split and ByteLevel are",
                         type));
    }
    if (!byte_level)
      fail("the pre_tokenizer does not end with ByteLevel: only byte-level BPE "
           "is supported");
  }

  // Metaspace where it is the only pre-tokenizer.
  static std::optional<Json> metaspace_of(const Json& pre) {
    const Json list = pre.is_object() ? member(pre, "pretokenizers", Json::array({pre})) : Json();
    const bool is_one = list.is_array() && list.size() == 1 && list[0].is_object();
    return is_one && member(list[0], "type", "") == "Metaspace" ? std::optional(list[0]) : std::nullopt;
  }

  // Whether the text is split at spaces, of which the normalizer has left none: Gemma's form.
  static bool splits_at_no_space(const Json& root) {
    const Json space = {{"String", " "}};
    return member(root, "normalizer", nullptr) ==
               Json{{"type", "Replace"}, {"pattern", space}, {"content", Metaspace::mark}} &&
           member(root, "pre_tokenizer", nullptr) ==
               Json{{"type", "Split"}, {"pattern", space}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
  }

  Metaspace read_metaspace(const Json& step) const {
    if (text_of(member(step, "replacement", ""), "Metaspace.replacement") != Metaspace::mark)
      fail(fmt::format("Metaspace is supported with the replacement '{}' alone", Metaspace::mark));
    constexpr std::array<std::pair<const char*, Metaspace::Prepend>, 3> schemes{{{"always", Metaspace::Prepend::always},
                                                                                 {"first", Metaspace::Prepend::first},
                                                                                 {"never", Metaspace::Prepend::never}}};
    const std::string name = text_of(member(step, "prepend_scheme", "always"), "Metaspace.prepend_scheme");
    for (const auto& [scheme, prepend] : schemes)
      if (name == scheme) return {prepend, flag(step, "split", true)};
    fail(fmt::format("Metaspace.prepend_scheme '{}' is not supported: always, first and never are", name));
  }

  void read_digits(const Json& step) {
    if (!flag(step, "individual_digits", false)) fail("Digits with individual_digits = false is not supported");
    add_split({WordPattern::digits});
  }

  void read_split(const Json& step) {
    Json pattern = member(step, "pattern", nullptr);
    std::string text = pattern.is_object() ? text_of(member(pattern, "Regex", ""), "Split.pattern.Regex") : "";
    if (text_of(member(step, "behavior", ""), "Split.behavior") != "Isolated" || flag(step, "invert", false))
      fail("Split is supported with behavior Isolated alone");
    const std::string escaped = replace_all(replace_all(text, "\r", "\\r"), "\n", "\\n");
    for (WordPattern known : split_patterns)
      if (escaped == pattern_text(known)) return add_split({known});
    if (auto characters = CharacterRun::parse(text)) return add_split({WordPattern::characters, std::move(characters)});
    fail(fmt::format("the pattern of Split is not one that this engine knows: {}", text),
         "the patterns of GPT-2, Llama 3, Qwen2, nanochat, Mistral (Tekken) and DeepSeek are supported, and single "
         "classes of characters");
  }

  void add_split(WordSplit split) {
    constexpr size_t most = 16;
    if (tokenizer_.pretokenizer_.splits.size() == most) fail(fmt::format("it has more than {} pre-tokenizers", most));
    tokenizer_.pretokenizer_.splits.push_back(std::move(split));
  }

  void read_decoder(const Json& root) {
    Json decoder = member(root, "decoder", nullptr);
    if (tokenizer_.sentencepiece_) return read_sentencepiece_decoder(decoder);
    if (decoder.is_null() || type_of(decoder, "decoder") != "ByteLevel")
      fail(fmt::format("decoder '{}' is not supported: only ByteLevel is",
                       decoder.is_null() ? "null" : type_of(decoder, "decoder")));
  }

  // Marks become spaces, bytes characters, and the text may lose the space that it got at its beginning.
  void read_sentencepiece_decoder(const Json& decoder) {
    Json expected = {{{"type", "Replace"}, {"pattern", {{"String", Metaspace::mark}}}, {"content", " "}},
                     {{"type", "ByteFallback"}},
                     {{"type", "Fuse"}}};
    const Json found = decoder.is_object() ? member(decoder, "decoders", nullptr) : Json();
    if (found == expected) return;
    expected.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    tokenizer_.drops_first_space_ = true;
    if (found != expected)
      fail("a decoder other than Llama 2's (Replace, ByteFallback, Fuse, and Strip or not) is not supported with "
           "byte_fallback",
           advice);
  }

  void store_added_tokens() {
    auto rest =
        std::stable_partition(added_.begin(), added_.end(), [](const auto& token) { return !token.normalized; });
    tokenizer_.added_normalized_ = AddedTokens({rest, added_.end()});
    tokenizer_.added_ = AddedTokens({added_.begin(), rest});
  }

  static constexpr const char* advice = "use a tokenizer with byte-level BPE, such as those of Llama 3, Qwen and "
                                        "SmolLM, or "
                                        "with SentencePiece's BPE in the form of Llama 2, Mistral and Gemma";
  std::vector<AddedToken> added_;
  Tokenizer tokenizer_;
};

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& where) {
  return TokenizerFile(where).read(json);
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  Tokenizer tokenizer = from_json(read_file(path, uint64_t{256} << 20), path.string());
  tokenizer.folder_ = path.has_parent_path() ? path.parent_path() : ".";
  return tokenizer;
}

} // namespace fvlm
