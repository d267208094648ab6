#include "data/visual_marks.h"

#include "base/error.h"
#include "base/text.h"
#include "recipe/frame_lines.h"
#include "recipe/image_indicators.h"
#include "recipe/image_row_order.h"
#include "recipe/placeholders.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fvlm {
namespace {

size_t count_of(const std::vector<TokenId>& ids, TokenId id) {
  return static_cast<size_t>(std::count(ids.begin(), ids.end(), id));
}

[[noreturn]] void refuse_marks(std::string what, bool are_cells) {
  throw Error(ErrorKind::data, std::move(what))
      .advise(are_cells ? "write one <image> for each image, or one <video> for a video; a text without any has them "
                          "before it"
                        : "write one <image> for each image, or one <video> for all frames; a text without either has "
                          "them before it");
}

void check_marks(size_t images, size_t videos, const MarkedFrames& frames) {
  const auto refuse = [&](std::string what) { refuse_marks(std::move(what), frames.are_cells); };
  const auto all = static_cast<size_t>(frames.frames);
  if (frames.are_cells && frames.are_of_video && images > 0)
    refuse("the text has an <image>, and the sample has a video");
  if (frames.are_cells && !frames.are_of_video && videos > 0) refuse("the text has a <video>, and the sample has none");
  require_one_video(images, videos, frames.are_cells);
  if (videos == 1 && all == 0) refuse("the text has a <video>, and the sample has no frames");
  const size_t expected = !frames.images.empty() ? frames.images.size() : frames.is_one_image && all > 0 ? 1 : all;
  if (images > 0 && images != expected)
    refuse(fmt::format("the text has {} <image>, and the sample has {}", images,
                       counted(static_cast<int64_t>(expected), "image")));
}

void append(std::vector<TokenId>& ids, std::span<const TokenId> more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

void append_rows(std::vector<TokenId>& ids, int64_t rows) {
  ids.insert(ids.end(), static_cast<size_t>(rows), visual_placeholder);
}

std::string shown_numbers(const Placeholders& placeholders) {
  if (placeholders.numbered == 0) return "";
  if (placeholders.shrunk_frames > 0)
    return fmt::format(" and of a shrunk picture of {} frames", placeholders.shrunk_frames);
  return fmt::format(", {} of them numbered up to {}", placeholders.numbered, placeholders.largest);
}

TokenId special_token(const Tokenizer& tokenizer, const std::string& token) {
  if (const auto id = tokenizer.special_id(token)) return *id;
  throw Error(ErrorKind::data, "the tokenizer has no special token '{}', which stands around the rows of an image",
              token)
      .at(tokenizer.folder().string())
      .advise("take the tokenizer of the model that the image processor belongs to");
}

std::vector<TokenId> idefics3_text(const Tokenizer& tokenizer, TileGrid grid, int64_t rows_per_frame) {
  const std::string around = "<fake_token_around_image>";
  special_token(tokenizer, around);
  std::vector<TokenId> ids;
  std::string line_break;
  for (int64_t row = 1; row <= grid.rows; ++row) {
    for (int64_t column = 1; column <= grid.columns; ++column) {
      append(ids, tokenizer.encode(line_break + around + fmt::format("<row_{}_col_{}>", row, column)));
      append_rows(ids, rows_per_frame);
      line_break.clear();
    }
    line_break = "\n";
  }
  append(ids, tokenizer.encode(line_break + line_break + around + "<global-img>"));
  append_rows(ids, rows_per_frame);
  append(ids, tokenizer.encode(around));
  return ids;
}

// As Idefics3's, but an image that is not cut is one tile.
std::vector<TokenId> granite_docling_text(const Tokenizer& tokenizer, TileGrid grid, int64_t rows_per_frame) {
  if (grid.rows > 0) return idefics3_text(tokenizer, grid, rows_per_frame);
  const std::string around = "<fake_token_around_image>";
  special_token(tokenizer, around);
  std::vector<TokenId> ids = tokenizer.encode(around + "<row_1_col_1>");
  append_rows(ids, rows_per_frame);
  append(ids, tokenizer.encode("\n"));
  return ids;
}

// Empty tokens: none.
std::vector<TokenId> rows_between(const Tokenizer& tokenizer, const char* before, const char* behind, int64_t rows) {
  std::vector<TokenId> ids;
  if (*before) ids.push_back(special_token(tokenizer, before));
  append_rows(ids, rows);
  if (*behind) ids.push_back(special_token(tokenizer, behind));
  return ids;
}

// Of a form without tokens between tiles.
std::vector<TokenId> rows_alone(const Tokenizer& tokenizer, TileFormTraits form, int64_t rows) {
  return rows_between(tokenizer, form.before, form.behind, rows);
}

// Of the steps of a video, each an image with the time behind it.
std::vector<TokenId> timed_video(const Tokenizer& tokenizer, TileForm form, const std::vector<TileGrid>& steps,
                                 int64_t rows_per_frame) {
  const TileFormTraits traits = traits_of(form);
  std::vector<TokenId> ids{special_token(tokenizer, traits.before_video)};
  for (const TileGrid& step : steps) {
    const double seconds = step.label_seconds.value_or(0);
    append(ids, rows_alone(tokenizer, traits, step.frames() * rows_per_frame));
    append(ids, tokenizer.encode(form == TileForm::glm4v ? fmt::format("{}", static_cast<int64_t>(seconds))
                                                         : fmt::format("{:.1f} seconds", seconds)));
  }
  ids.push_back(special_token(tokenizer, traits.behind_video));
  return ids;
}

std::vector<TokenId> pixtral_text(const Tokenizer& tokenizer, TileGrid grid, int64_t rows_per_frame) {
  const TokenId line_end = special_token(tokenizer, "[IMG_BREAK]"), end = special_token(tokenizer, "[IMG_END]");
  std::vector<TokenId> ids;
  for (int64_t row = 1; row <= grid.rows; ++row) {
    append_rows(ids, grid.columns * rows_per_frame);
    ids.push_back(row < grid.rows ? line_end : end);
  }
  return ids;
}

std::vector<TokenId> lfm2_vl_text(const Tokenizer& tokenizer, TileGrid grid, int64_t rows_per_frame) {
  constexpr TileFormTraits form = traits_of(TileForm::lfm2_vl);
  std::vector<TokenId> ids{special_token(tokenizer, form.before)};
  const bool has_tiles = grid.tile_rows > 0;
  if (!has_tiles) append_rows(ids, grid.rows * grid.columns * rows_per_frame);
  for (int64_t row = 1; has_tiles && row <= grid.rows / grid.tile_rows; ++row)
    for (int64_t column = 1; column <= grid.columns / grid.tile_columns; ++column) {
      ids.push_back(special_token(tokenizer, fmt::format("<|img_row_{}_col_{}|>", row, column)));
      append_rows(ids, grid.tile_rows * grid.tile_columns * rows_per_frame);
    }
  if (grid.whole_rows > 0) {
    ids.push_back(special_token(tokenizer, "<|img_thumbnail|>"));
    append_rows(ids, grid.whole_rows * grid.whole_columns * rows_per_frame);
  }
  ids.push_back(special_token(tokenizer, form.behind));
  return ids;
}

std::vector<TokenId> minicpm_text(const Tokenizer& tokenizer, TileGrid grid, int64_t rows_per_frame) {
  std::vector<TokenId> ids;
  if (grid.number) {
    ids.push_back(special_token(tokenizer, "<image_id>"));
    append(ids, tokenizer.encode(fmt::format("{}", *grid.number)));
    ids.push_back(special_token(tokenizer, "</image_id>"));
  }
  const bool has_parts = grid.tile_rows > 0;
  append(ids, rows_alone(tokenizer, traits_of(TileForm::minicpm),
                         (has_parts ? grid.whole_rows * grid.whole_columns : grid.frames()) * rows_per_frame));
  for (int64_t row = 0; has_parts && row < grid.rows / grid.tile_rows; ++row) {
    if (row > 0) append(ids, tokenizer.encode("\n"));
    for (int64_t column = 0; column < grid.columns / grid.tile_columns; ++column)
      append(ids, rows_between(tokenizer, "<slice>", "</slice>", grid.tile_rows * grid.tile_columns * rows_per_frame));
  }
  return ids;
}

// Numbered placeholders of a row before the cells, of each line of cells with a newline behind it, and of one behind
// all.
std::vector<TokenId> hunyuan_text(const Tokenizer& tokenizer, TileGrid grid, int64_t rows_per_frame,
                                  int64_t first_row) {
  if (rows_per_frame != ImageRowOrder::rows_per_cell)
    throw Error(ErrorKind::data,
                "images of HunyuanOCR have rows before, between and behind their lines of cells, and "
                "the connector makes {} of a cell",
                counted(rows_per_frame, "row"))
        .advise("use the connector fvlm.hunyuan_vl {{ }}, or the image processor of another model");
  constexpr TileFormTraits form = traits_of(TileForm::hunyuan);
  std::vector<TokenId> ids{special_token(tokenizer, form.before)};
  const auto append = [&](int64_t cell, int64_t row) {
    ids.push_back(numbered_placeholder(first_row + cell * rows_per_frame + row));
  };
  const TokenId end = special_token(tokenizer, form.behind);
  const int64_t cells = grid.rows * grid.columns;
  if (cells == 0) return ids; // there is no image, but what its rows need
  append(0, ImageRowOrder::begin);
  for (int64_t cell = 0; cell < cells; ++cell) {
    append(cell, ImageRowOrder::own);
    if ((cell + 1) % grid.columns == 0) append(cell, ImageRowOrder::newline);
  }
  append(cells - 1, ImageRowOrder::end);
  ids.push_back(end);
  return ids;
}

// Numbered placeholders of the whole image and of each tile, with the learned rows around and between them.
std::vector<TokenId> ovis2_text(TileGrid grid, int64_t rows_per_frame, int64_t first_row) {
  const int64_t own = rows_per_frame - ImageIndicators::count,
                side = std::llround(std::sqrt(std::max<int64_t>(own, 0)));
  if (own < 1 || side * side != own)
    throw Error(ErrorKind::data,
                "images of Ovis2 have learned rows around them and between their tiles, and the connector makes {} of "
                "a frame",
                counted(rows_per_frame, "row"))
        .advise("use the connector fvlm.ovis2 {{ }}, or the image processor of another model");
  std::vector<TokenId> ids;
  const auto append = [&](int64_t frame, int64_t row) {
    ids.push_back(numbered_placeholder(first_row + frame * rows_per_frame + row));
  };
  const auto append_frame = [&](int64_t frame) {
    for (int64_t row = 0; row < own; ++row) append(frame, row);
  };
  const auto append_indicator = [&](int64_t indicator) { append(0, own + indicator); };
  append_indicator(ImageIndicators::start);
  append_frame(grid.frames() - 1); // the whole image
  append_indicator(ImageIndicators::grid);
  for (int64_t tile = 0; tile < grid.rows * grid.columns; ++tile) {
    if (tile > 0) append_indicator(tile % grid.columns > 0 ? ImageIndicators::column : ImageIndicators::row);
    append_frame(tile);
  }
  append_indicator(ImageIndicators::end);
  return ids;
}

// What an image of cells needs at a mark: the chat templates of Qwen2-VL, PaddleOCR-VL, GLM and HunyuanOCR write
// the tokens around it themselves.
std::span<const TokenId> cells_at(const std::vector<TokenId>& ids, size_t mark, std::span<const TokenId> image,
                                  const MarkedFrames& frames) {
  if (image.front() == visual_placeholder) return image; // nothing stands before it
  const bool is_begun = mark > 0 && ids[mark - 1] == image.front();
  const bool is_ended = mark + 1 < ids.size() && ids[mark + 1] == image.back();
  if (is_begun != is_ended) {
    const TileFormTraits form = traits_of(frames.form);
    const bool is_video = frames.are_of_video && *form.before_video;
    const char *before = is_video ? form.before_video : form.before,
               *behind = is_video ? form.behind_video : form.behind, *what = is_video ? "a video" : "an image";
    throw Error(ErrorKind::data, "the chat template writes {} {} without {} {} it",
                is_begun ? fmt::format("{} before", before) : fmt::format("{} behind", behind), what,
                is_begun ? behind : before, is_begun ? "behind" : "before")
        .advise("let it write both around each, or neither, and they are added");
  }
  return is_begun ? image.subspan(1, image.size() - 2) : image;
}

// Which lines and columns of a picture of patches show the image, and not the margins that it was padded with.
struct Crop {
  int64_t top = 0, bottom = 0, left = 0, right = 0;
};

Crop without_margins(TileGrid image, int64_t lines, int64_t columns) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  // As transformers, which rounds to seven digits before it cuts the digits off.
  const auto margin = [](int64_t all, double length, double scale) {
    return (all - static_cast<int64_t>(length * scale + 5e-8)) / 2;
  };
  Crop crop{0, lines, 0, columns};
  if (width / height > static_cast<double>(columns) / static_cast<double>(lines)) {
    crop.top = margin(lines, height, static_cast<double>(columns) / width);
    crop.bottom -= crop.top;
  } else {
    crop.left = margin(columns, width, static_cast<double>(lines) / height);
    crop.right -= crop.left;
  }
  return crop;
}

// Writes the numbered placeholders of LLaVA-NeXT and LLaVA-OneVision.
class LineWriter {
 public:
  LineWriter(TileForm form, int64_t rows_per_frame) : rows_per_frame_(rows_per_frame) {
    const bool is_pooled = form == TileForm::llava_onevision;
    const auto lines = FrameLines::of(rows_per_frame, is_pooled);
    if (!lines)
      throw Error(ErrorKind::data,
                  "the image processor cuts images as {}'s, whose frames become lines of patches with a newline behind "
                  "each, and the connector makes {} of a frame",
                  traits_of(form).model, counted(rows_per_frame, "row"))
          .advise("use the connector fvlm.mlp {{ newline = true{} }}, or the image processor of another model",
                  is_pooled ? ", video_pooling = true" : "");
    lines_ = *lines;
  }

  std::vector<TokenId> image(TileGrid grid, int64_t first_row) {
    first_row_ = first_row;
    for (int64_t line = 0; line < lines_.side; ++line)
      for (int64_t column = 0; column < lines_.side; ++column)
        append(grid.rows * grid.columns, lines_.patch(line, column));
    if (grid.rows == 0)
      append(0, lines_.newline(0));
    else
      append_picture(grid);
    return std::move(ids_);
  }

  std::vector<TokenId> frame_of_video(int64_t first_row, bool is_last) {
    first_row_ = first_row;
    for (int64_t row = lines_.first_pooled(); row < lines_.rows(); ++row) append(0, row);
    if (is_last) append(0, lines_.newline(0));
    return std::move(ids_);
  }

 private:
  void append(int64_t frame, int64_t row) {
    ids_.push_back(numbered_placeholder(first_row_ + frame * rows_per_frame_ + row));
  }

  // The tiles as one picture.
  void append_picture(TileGrid grid) {
    const int64_t side = lines_.side;
    const Crop crop = without_margins(grid, grid.rows * side, grid.columns * side);
    const ShrunkPicture picture{grid.rows, grid.columns, crop.top, crop.left};
    if (const auto size = picture.size(side); size && lines_.is_pooled) {
      for (int64_t patch = 0; patch < size->lines * size->columns; ++patch) {
        ids_.push_back(shrunk_placeholder(picture, patch));
        if ((patch + 1) % size->columns == 0) append(0, lines_.newline(0));
      }
      return;
    }
    for (int64_t line = crop.top; line < crop.bottom; ++line) {
      const int64_t first_tile = line / side * grid.columns;
      for (int64_t column = crop.left; column < crop.right; ++column)
        append(first_tile + column / side, lines_.patch(line % side, column % side));
      append(first_tile + grid.columns - 1, lines_.newline(line % side));
    }
  }

  const int64_t rows_per_frame_;
  FrameLines lines_;
  int64_t first_row_ = 0;
  std::vector<TokenId> ids_;
};

} // namespace

void split_at_marks(std::string_view text, const std::function<void(std::string_view)>& on_text,
                    const std::function<void(std::string_view)>& on_mark) {
  while (!text.empty()) {
    const size_t at = std::min(text.find(image_mark), text.find(video_mark));
    if (at != 0) on_text(text.substr(0, at));
    if (at == std::string_view::npos) return;
    on_mark(text.substr(at, image_mark.size()));
    text.remove_prefix(at + image_mark.size());
  }
}

bool has_visual_mark(std::string_view text) {
  return text.find(image_mark) != std::string_view::npos || text.find(video_mark) != std::string_view::npos;
}

namespace {

// The text with `after` in place of `before` behind the first letter of each <image> and <video>.
std::string replaced_in_marks(std::string_view text, std::string_view before, std::string_view after) {
  std::string out;
  size_t begin = 0;
  for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    const std::string_view behind = text.substr(at + 1), rest = behind.substr(std::min(before.size(), behind.size()));
    const bool is_mark = rest.starts_with(image_mark.substr(1)) || rest.starts_with(video_mark.substr(1));
    if (!is_mark || !behind.starts_with(before)) continue;
    out.append(text, begin, at + 1 - begin).append(after);
    begin = at + 1 + before.size();
  }
  return out.append(text.substr(begin));
}

constexpr std::string_view noncharacter = "\uFDD1";

} // namespace

std::string marks_as_words(std::string_view text) {
  return replaced_in_marks(text, "", noncharacter);
}

std::string words_as_spelled(std::string_view text) {
  return replaced_in_marks(text, noncharacter, "");
}

std::string without_marks(const std::string& text) {
  std::string out;
  bool any = false;
  split_at_marks(
      text, [&](std::string_view piece) { out += piece; }, [&](std::string_view) { any = true; });
  return any ? trimmed(out) : text;
}

void require_one_video(size_t images, size_t videos, bool are_cells) {
  if (videos > 0 && (videos > 1 || images > 0))
    refuse_marks(
        fmt::format("the text has {} <video> and {} <image>, and a sample has one video or images", videos, images),
        are_cells);
}

std::vector<TokenId> tile_text(const Tokenizer& tokenizer, TileForm form, TileGrid grid, int64_t rows_per_frame,
                               int64_t first_row) {
  switch (form) {
  case TileForm::idefics3:
    return idefics3_text(tokenizer, grid, rows_per_frame);
  case TileForm::granite_docling:
    return granite_docling_text(tokenizer, grid, rows_per_frame);
  case TileForm::hunyuan:
    return hunyuan_text(tokenizer, grid, rows_per_frame, first_row);
  case TileForm::ovis2:
    return ovis2_text(grid, rows_per_frame, first_row);
  case TileForm::pixtral:
    return pixtral_text(tokenizer, grid, rows_per_frame);
  case TileForm::lfm2_vl:
    return lfm2_vl_text(tokenizer, grid, rows_per_frame);
  case TileForm::minicpm:
    return minicpm_text(tokenizer, grid, rows_per_frame);
  case TileForm::llava_next:
  case TileForm::llava_onevision:
    return LineWriter(form, rows_per_frame).image(grid, first_row);
  default:
    return rows_alone(tokenizer, traits_of(form), grid.frames() * rows_per_frame);
  }
}

void add_tile_texts(MarkedFrames& frames, const Tokenizer& tokenizer, TileForm form,
                    const std::vector<TileGrid>& grids) {
  frames.form = form;
  frames.are_cells = has_cells(form);
  frames.are_of_video = !grids.empty() && grids.front().is_of_video();
  if (frames.are_of_video && *traits_of(form).before_video) {
    frames.images = {timed_video(tokenizer, form, grids, frames.rows_per_frame)};
    return;
  }
  for (const TileGrid& grid : grids)
    if (grid.label_seconds)
      frames.video_labels.push_back(tokenizer.encode(fmt::format("<{:.1f} seconds>", *grid.label_seconds)));
  const std::vector<TileGrid> uncut(grids.empty() && !frames.are_cells ? static_cast<size_t>(frames.frames) : 0);
  int64_t first_row = 0;
  for (TileGrid grid : grids.empty() ? uncut : grids) {
    if (grid.number) grid.number = std::ssize(frames.images);
    const int64_t next_row = first_row + grid.frames() * frames.rows_per_frame;
    frames.images.push_back(form == TileForm::llava_onevision && grids.empty()
                                ? LineWriter(form, frames.rows_per_frame)
                                      .frame_of_video(first_row, next_row == frames.frames * frames.rows_per_frame)
                                : tile_text(tokenizer, form, grid, frames.rows_per_frame, first_row));
    first_row = next_row;
  }
  if (form != TileForm::internvl) return;
  for (size_t i = 0; i < frames.images.size(); ++i)
    frames.video_labels.push_back(tokenizer.encode(fmt::format("{}Frame{}: ", i == 0 ? "" : "\n", i + 1)));
}

int64_t expand_marks(std::vector<TokenId>& ids, std::vector<uint8_t>& mask, const MarkedFrames& frames) {
  const size_t images = count_of(ids, image_mark_id), videos = count_of(ids, video_mark_id);
  check_marks(images, videos, frames);
  const int64_t all = frames.frames * frames.rows_per_frame;
  if (images + videos > 0) {
    const auto rows = static_cast<size_t>(images > 1 ? frames.rows_per_frame : all);
    auto image = frames.images.begin();
    std::vector<TokenId> expanded;
    std::vector<uint8_t> expanded_mask;
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool is_mark = ids[i] == image_mark_id || ids[i] == video_mark_id;
      if (is_mark && !frames.images.empty()) {
        const bool is_video = ids[i] == video_mark_id;
        const auto end = is_video ? frames.images.end() : image + 1;
        auto label = frames.video_labels.begin();
        for (; image != end; ++image) {
          if (is_video && label != frames.video_labels.end()) append(expanded, *label++);
          append(expanded, frames.are_cells && frames.video_labels.empty() ? cells_at(ids, i, *image, frames) : *image);
        }
        if (!mask.empty()) expanded_mask.resize(expanded.size());
        continue;
      }
      expanded.insert(expanded.end(), is_mark ? rows : 1, is_mark ? visual_placeholder : ids[i]);
      if (!mask.empty()) expanded_mask.insert(expanded_mask.end(), is_mark ? rows : 1, is_mark ? 0 : mask[i]);
    }
    ids = std::move(expanded);
    mask = std::move(expanded_mask);
  }
  const Placeholders placeholders = Placeholders::in(ids);
  if (!placeholders.fit(frames.frames, frames.rows_per_frame))
    throw Error(ErrorKind::data, "the text has {} for visual rows{}, and the sample has {}: {} of {} each",
                counted(placeholders.count, "placeholder"), shown_numbers(placeholders), all,
                counted(frames.frames, "frame"), frames.rows_per_frame);
  return placeholders.count;
}

std::string decode_with_placeholders(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  std::string text;
  while (!ids.empty()) {
    const bool visual = is_placeholder(ids.front());
    const auto end = std::find_if(ids.begin(), ids.end(), [&](TokenId id) { return is_placeholder(id) != visual; });
    const auto run = ids.first(static_cast<size_t>(end - ids.begin()));
    text += visual ? fmt::format("[{}]", counted(std::ssize(run), "visual row")) : tokenizer.decode(run);
    ids = ids.subspan(run.size());
  }
  return text;
}

} // namespace fvlm
