// <image> and <video> in what a user says. They are removed, or become placeholders for the visual rows of the frames.
#pragma once
#include "data/tile_grid.h"
#include "data/tokenizer.h"
#include "recipe/visual_rows.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

inline constexpr std::string_view image_mark = "<image>", video_mark = "<video>";

// In the ids of a text between its tokenization and expand_marks(), when the number of frames is known.
inline constexpr TokenId image_mark_id = -2, video_mark_id = -3;

// Calls `text` for each piece between marks that is not empty, and `mark` for each mark, in order.
void split_at_marks(std::string_view text, const std::function<void(std::string_view)>& on_text,
                    const std::function<void(std::string_view)>& on_mark);
bool has_visual_mark(std::string_view text);
// The text with its marks as words, which mean nothing: a noncharacter stands in each, until words_as_spelled() takes
// it out where the text becomes tokens.
std::string marks_as_words(std::string_view text);
std::string words_as_spelled(std::string_view text);
// The text without its marks and, if it had any, without the space around it.
std::string without_marks(const std::string& text);

// How a sample's frames are filled in.
struct MarkedFrames {
  int64_t frames = 0, rows_per_frame = 1;
  bool is_one_image = false; // which is repeated: <image> stands for all frames
  // What stands for each image, by tile_text(); <video> is all of them. Empty: rows alone.
  std::vector<std::vector<TokenId>> images;
  // What stands before each of them in place of <video>; empty: nothing.
  std::vector<std::vector<TokenId>> video_labels;
  // The frames are cells (has_cells(TileForm)) of images, whose text has no <video>, or of a video, whose text has no
  // <image>. The tokens around the rows of Qwen2-VL are left out where the text has them there already.
  bool are_cells = false, are_of_video = false;
  TileForm form = TileForm::idefics3; // of these
};
// The placeholders of an image that is cut into tiles, between the tokens that models were trained with: those of
// tile_forms.inc before and behind all rows, and in some families others between them. Idefics3 and SmolVLM:
// <fake_token_around_image><row_1_col_1> before those of the first tile, <fake_token_around_image><global-img> before
// those of the whole image; Granite Docling the same, and an image that is not cut is its one tile. LLaVA-NeXT: no
// tokens, but numbered placeholders, `first_row` being the image's first visual row of the sample: the patches of the
// whole image, and then line by line those of all tiles as one picture without its margins, with the row of a newline
// behind each line. LLaVA-OneVision: the same, and a picture of many tiles is shrunk. Pixtral: [IMG_BREAK] behind those
// of each line of cells, and [IMG_END] behind the last one. HunyuanOCR: numbered placeholders, see ImageRowOrder.
// Ovis2: the same, of the whole image and then of the tiles line by line, with those of ImageIndicators around and
// between them. LFM2-VL: those of each tile behind
// <|img_row_1_col_1|>, and those of the whole image behind <|img_thumbnail|>. MiniCPM-V: those of each part between
// <slice> and </slice> behind those of the whole image, a line break between lines of parts, and the image's number
// between <image_id> and
// </image_id> before all. The same ids as those of transformers' processors. Throws Error(data) where the tokenizer
// lacks such a token, or where the rows of a frame are no lines of patches with a newline.
std::vector<TokenId> tile_text(const Tokenizer& tokenizer, TileForm form, TileGrid grid, int64_t rows_per_frame,
                               int64_t first_row);
// Fills in the images, for each grid, or where there are none, for `frames.frames` images that were not cut, or frames
// of a video, which LLaVA-OneVision has at half the size with one newline at the end; and the labels of a video's
// frames, which InternVL has, "Frame1: ", or of its steps, which Qwen3-VL has, "<0.5 seconds>". All steps of a GLM's
// video are filled in as one image, with the time behind each, "2" with GLM-4.1V and "2.0 seconds" with GLM-4.6V.
void add_tile_texts(MarkedFrames& frames, const Tokenizer& tokenizer, TileForm form,
                    const std::vector<TileGrid>& grids);

// Throws Error(data) where a text with a <video> has another mark.
void require_one_video(size_t images, size_t videos, bool are_cells = false);

// Replaces each mark in the ids by placeholders: <video> by the rows of all frames, <image> by those of the next one.
// The mask, if it is not empty, stays as long as the ids. Returns the number of placeholders. Throws Error(data) unless
// it is 0 or that of the visual rows.
int64_t expand_marks(std::vector<TokenId>& ids, std::vector<uint8_t>& mask, const MarkedFrames& frames);

// The text with "[64 visual rows]" where placeholders stand.
std::string decode_with_placeholders(const Tokenizer& tokenizer, std::span<const TokenId> ids);

} // namespace fvlm
