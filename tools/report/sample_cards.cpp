// Held-out samples with the model's answers and attention maps.
#include "base/base64.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "data/media/decode_image.h"
#include "data/media/write_image.h"
#include "report/heat_map.h"
#include "report/html.h"
#include "report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace fvlm::report {
namespace {

// Limits in bytes: a frame's file; a frame that is embedded without conversion to JPEG; all frames of the page.
constexpr uint64_t most_file_bytes = uint64_t{16} << 20, most_frame_bytes = 24 << 10, most_bytes = 12 << 20;
constexpr size_t most_notes = 20;
constexpr int64_t few_pixels = 96; // shown as squares when enlarged

struct Picture {
  std::string type, bytes;
  bool few = false;

  std::string address() const { return fmt::format("data:image/{};base64,{}", type, encode_base64(bytes)); }
};

// Throws Error(data) for a file that holds no picture.
Picture picture_of(const std::filesystem::path& file) {
  std::string bytes = read_file(file, most_file_bytes);
  Image image = decode_image(std::as_bytes(std::span(bytes)));
  bool few = std::max(image.width, image.height) <= few_pixels;
  if (bytes.size() > most_frame_bytes) return {"jpeg", write_jpeg(image, 85), few};
  return {bytes.starts_with("\xFF\xD8") ? "jpeg" : "png", bytes, few};
}

// Compares answers ignoring case, surrounding blanks and a final full stop.
std::string plain(std::string_view text) {
  std::string out = trimmed(text);
  while (out.ends_with('.')) out = trimmed(std::string_view(out).substr(0, out.size() - 1));
  return lower_case(std::move(out));
}

const Option* chosen_of(const ShownSample& sample) {
  const Option* chosen = nullptr;
  for (const auto& option : sample.options)
    if (option.loss && (!chosen || *option.loss < *chosen->loss)) chosen = &option;
  return chosen;
}

std::string verdict(bool right, std::string_view words) {
  return fmt::format(R"(<span class="verdict {}">{} {}</span>)", right ? "right" : "wrong", right ? "✓" : "✗", words);
}

// Whether the likeliest option is correct, or without options, whether the answer's text is.
std::string verdict(const ShownSample& sample) {
  if (const Option* chosen = chosen_of(sample))
    return verdict(chosen->right, chosen->right ? "right choice" : "wrong choice");
  if (!sample.answers.empty()) return verdict(sample.answers[0].right, sample.answers[0].right ? "right" : "wrong");
  if (sample.expected.empty() || sample.answer.empty()) return "";
  bool right = plain(sample.answer) == plain(sample.expected);
  return verdict(right, right ? "right" : "differs");
}

std::string option_rows(const ShownSample& sample) {
  if (sample.options.empty()) return "";
  const Option* chosen = chosen_of(sample);
  double total = 0;
  auto weight = [&](const Option& option) {
    return option.loss && chosen ? std::exp(*chosen->loss - *option.loss) : 0;
  };
  for (const auto& option : sample.options) total += weight(option);
  std::string rows;
  for (const auto& option : sample.options) {
    double share = total > 0 ? weight(option) / total : 0;
    std::string_view mark = option.right ? "right" : &option == chosen ? "wrong" : "";
    rows += fmt::format(
        R"(<li class="{}{}"><i style="width:{:.1f}%"></i><span>{}{}</span><small>{} · loss {}</small></li>)", mark,
        &option == chosen ? " chosen" : "", 100 * share, option.right ? "✓ " : "", escaped(option.text), percent(share),
        option.loss ? fmt::format("{:.3f}", *option.loss) : "–");
  }
  return fmt::format("<ul class=\"options\">{}</ul>", rows);
}

class Cards {
 public:
  explicit Cards(std::vector<std::string>& notes) : notes_(notes) {}

  std::string card(const ShownSample& sample) {
    std::string out = frames(sample);
    out += fmt::format(R"(<p class="question">{}</p>)", escaped(sample.question));
    out += "<dl>";
    if (!sample.answer.empty() || sample.options.empty())
      out +=
          fmt::format("<dt>answer</dt><dd>{}</dd>", sample.answer.empty() ? "<i>nothing</i>" : escaped(sample.answer));
    if (!sample.expected.empty()) out += fmt::format("<dt>expected</dt><dd>{}</dd>", escaped(sample.expected));
    out += "</dl>" + option_rows(sample);
    std::string where = fmt::format("{} · step {}", sample.stage, grouped(sample.step));
    if (!sample.source.empty() && sample.source != sample.set) where += " · " + sample.source;
    return fmt::format(R"(<article class="sample">{}<footer>{}{}</footer></article>
)",
                       out, verdict(sample), fmt::format("<span>{}</span>", escaped(where)));
  }

  void finish() {
    if (left_out_ > 0)
      notes_.push_back(
          fmt::format("{} frames of samples were left out of this page, which would get too large", left_out_));
  }

 private:
  struct ShownFrame {
    Picture picture;
    std::string heat; // the veil; empty: there is none
    std::string peak; // the share of its clearest cell
  };

  // Those that can be shown, by their place among the sample's frames.
  std::map<size_t, ShownFrame> read_frames(const ShownSample& sample) {
    double most = 0;
    for (const auto& map : sample.attention)
      for (double share : map) most = std::max(most, share);
    std::map<size_t, ShownFrame> shown;
    for (size_t f = 0; f < sample.frames.size(); ++f) {
      auto picture = read_picture(sample.frames[f]);
      if (!picture) continue;
      ShownFrame& frame = shown[f] = {std::move(*picture), "", ""};
      if (f >= sample.attention.size() || most <= 0) continue;
      frame.heat = veil(sample, sample.attention[f], most);
      frame.peak = percent(*std::ranges::max_element(sample.attention[f]), 0);
    }
    return shown;
  }

  static std::string veil(const ShownSample& sample, const AttentionMap& map, double most) {
    return fmt::format(R"(<img class="heat" alt="" src="data:image/png;base64,{}">)",
                       encode_base64(heat_map_png(map, sample.rows, sample.columns, most)));
  }

  static std::string frame_html(size_t number, const ShownFrame& frame) {
    return fmt::format(R"(<div class="frame"><img{} alt="frame {}" src="{}">{}</div>)",
                       frame.picture.few ? " class=\"few\"" : "", number + 1, frame.picture.address(), frame.heat);
  }

  std::string frames(const ShownSample& sample) {
    const auto shown = read_frames(sample);
    std::string out;
    const auto add = [&](const std::string& content, const std::string& caption, const std::string& peak) {
      out += fmt::format("<figure>{}<figcaption>{}<span>{}</span></figcaption></figure>", content, caption, peak);
    };
    std::set<size_t> in_tiles;
    size_t next = 0;
    for (const TileGrid& grid : sample.tiles) {
      std::string tiles;
      for (int64_t tile = 0; tile < grid.rows * grid.columns; ++tile, ++next) {
        in_tiles.insert(next);
        const auto found = shown.find(next);
        tiles += found == shown.end() ? "<div class=\"frame\"></div>" : frame_html(next, found->second);
      }
      if (!tiles.empty())
        out += fmt::format(
            R"(<figure class="tiled"><div class="tiles" style="--columns:{}">{}</div><figcaption>{} × {} tiles</figcaption></figure>)",
            grid.columns, tiles, grid.rows, grid.columns);
      ++next; // the whole image
    }
    for (const auto& [number, frame] : shown)
      if (!in_tiles.contains(number))
        add(frame_html(number, frame), sample.tiles.empty() ? fmt::format("{}", number + 1) : "whole image",
            frame.peak);
    if (out.empty()) return "";
    return fmt::format("<div class=\"frames\">{}</div>", out) + queries(sample, shown);
  }

  // Each query's map, where a frame has several, on a scale of its own.
  std::string queries(const ShownSample& sample, const std::map<size_t, ShownFrame>& shown) {
    std::string out;
    size_t count = 0;
    for (const auto& [number, frame] : shown) {
      if (number >= sample.query_attention.size() || sample.query_attention[number].empty()) continue;
      count = std::max(count, sample.query_attention[number].size());
      out += fmt::format("<div class=\"queries{}\" style=\"--picture:url({})\">", frame.picture.few ? " few" : "",
                         frame.picture.address());
      for (const auto& map : sample.query_attention[number]) {
        const std::string heat = veil(sample, map, *std::ranges::max_element(map));
        used_ += heat.size();
        out += "<div>" + heat + "</div>";
      }
      out += "</div>";
    }
    return out.empty()
               ? ""
               : fmt::format("<details><summary>where each of {} queries looked</summary>{}</details>", count, out);
  }

  // Empty, with a note, for a file that is missing, not an image, or beyond the page's limit.
  std::optional<Picture> read_picture(const std::filesystem::path& file) {
    if (used_ > most_bytes) {
      ++left_out_;
      return std::nullopt;
    }
    try {
      Picture picture = picture_of(file);
      used_ += picture.bytes.size();
      return picture;
    } catch (const Error& error) {
      if (notes_.size() < most_notes)
        notes_.push_back(error.where().empty() ? file.string() + ": " + error.text() : error.text());
      return std::nullopt;
    }
  }

  std::vector<std::string>& notes_;
  uint64_t used_ = 0;
  int64_t left_out_ = 0;
};

} // namespace

std::string sample_cards(const PageInput& input, std::vector<std::string>& notes) {
  Cards cards(notes);
  std::string out, before;
  bool heat = false, queries = false, options = false;
  for (const auto& sample : input.samples) {
    if (is_compared(sample, input.samples)) continue;
    heat = heat || !sample.attention.empty();
    queries = queries || !sample.query_attention.empty();
    options = options || !sample.options.empty();
    if (std::string group = sample.stage + "\n" + sample.set; group != before) {
      if (!before.empty()) out += "</div>\n";
      out +=
          fmt::format("<h3>{}, after {}</h3>\n<div class=\"samples\">\n", escaped(sample.set), escaped(sample.stage));
      before = group;
    }
    out += cards.card(sample);
  }
  cards.finish();
  if (out.empty()) return "";
  out += "</div>\n";
  if (options)
    out +=
        "<p class=\"note\">An option’s share: exp(−loss), of all options together one; the choice is the largest. The "
        "answer above it is what the model writes by itself.</p>\n";
  if (!heat) return out;
  return R"(<p class="controls"><label><input type="checkbox" id="heat" checked> show where the model looked</label></p>
<p class="note">A frame is clear where its query looked most and veiled where it did not: the mean over )" +
         std::string(queries ? "queries, layers" : "layers") +
         R"( and heads, on one (square-root) scale for all frames of a clip. The number is the share of its clearest cell. Point at a frame to see it without the veil.)" +
         (queries ? " The map of a single query is the mean over layers and heads, on a scale of its own." : "") +
         "</p>\n" + out;
}

} // namespace fvlm::report
