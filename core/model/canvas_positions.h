// Positions of decoder rows by M-RoPE on a canvas, as in MiniCPM-V 4.7. An image and the parts that follow it share a
// canvas, which is as large as all parts side by side; without parts it is as large as the image.
//
// All rows from the token before an image to the tokens behind its last part have one number for time, the canvas's. In
// height and width the cells of a part have their places on the canvas, and those of the image are spread over it. So
// do tokens around them: the one before the image is just ahead of the first corner and the one behind it at the last
// one, those around a part at its corners, and a line break between parts just behind its line. What follows goes on
// behind the longer side of the canvas.
#pragma once
#include "model/row_positions.h"

namespace fvlm::model {

// See positions_of(). `grids`: of images and of their parts, each of which has a token before it. Throws Error(data)
// for one that has none.
RowPositions canvas_positions(std::span<const int64_t> rows, std::span<const ImageGrid> grids,
                              const CanvasTokens& tokens);

} // namespace fvlm::model
