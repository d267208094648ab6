// A picture of patches that is larger than a model reads: LLaVA-OneVision lays the tiles of an image out as one
// picture, cuts the margins off, and shrinks what has more than nine tiles' patches to about as many. A row of the
// shrunk picture is the bilinear mean of four patches. A placeholder for it says all of that by itself, so that no list
// goes along with a text.
#pragma once
#include <array>
#include <cstdint>
#include <optional>

namespace fvlm {

struct ShrunkPicture {
  int64_t rows = 0,
          columns = 0;       // of tiles, which are the first frames of the sample, row by row; the whole image follows
  int64_t top = 0, left = 0; // lines and columns of patches that each of two opposite margins has; one of them is 0

  int64_t frames() const { return rows * columns + 1; }

  struct Size {
    int64_t lines, columns; // of patches
  };
  // Of tiles of side x side patches. Nothing where such a picture is not shrunk.
  std::optional<Size> size(int64_t side) const;

  bool operator==(const ShrunkPicture&) const = default;
};

// The ids at the lower end of their range are placeholders of shrunk pictures.
inline constexpr int64_t first_shrunk_placeholder = -(int64_t{1} << 30);
constexpr bool is_shrunk_placeholder(int64_t id) {
  return id <= first_shrunk_placeholder;
}
// Of the picture's patch of this number, line by line. Throws Error(data) for a picture of more tiles, margins or
// patches than ids have room for, far more than models have.
int32_t shrunk_placeholder(const ShrunkPicture& picture, int64_t patch);

// What a placeholder of a shrunk picture says.
struct ShrunkPatch {
  ShrunkPicture picture;
  int64_t patch = 0;

  static ShrunkPatch of(int64_t placeholder);

  // The sample's visual rows that it is a mean of, and their shares. Throws Error(data) for a patch that the picture
  // does not have, and for frames that are not of such lines.
  struct Mean {
    std::array<int64_t, 4> rows;
    std::array<float, 4> shares;
  };
  Mean mean(int64_t rows_per_frame) const;
};

} // namespace fvlm
