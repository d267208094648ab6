/* fvlm/video.h: decoded frames of video files. Kind "fvlm.video/1". Host memory only.
 *
 * A picture is a decoded frame. The engine holds the file and gives access through callbacks; a plugin opens nothing
 * itself. Frames are delivered one at a time, upright, in RGB, so that at most one of full size is ever held for the
 * engine. Times are seconds since the first frame. Files are untrusted input: whatever they contain, a plugin returns a
 * status, takes no more memory than a few frames of most_pixels (max_pixels), and polls stop() (is_cancelled). A
 * damaged file, or one beyond the limits, is FVLM_ERROR_DATA. */
#ifndef FVLM_VIDEO_H
#define FVLM_VIDEO_H

#include <fvlm/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FVLM_VIDEO_KIND "fvlm.video/1"

typedef struct fvlm_video_query {
  uint32_t struct_size;
  const char* format;  /* the file extension in lower case: "mp4" */
  int64_t most_pixels; /* max_pixels of a frame; a file with larger ones is refused before memory is allocated for
                          them */
} fvlm_video_query;

/* A file, valid for one call. Only the thread of that call may call its functions. */
typedef struct fvlm_video_file {
  uint32_t struct_size;
  uint64_t size; /* bytes */
  void* context;

  /* Copies `count` bytes at `offset` to `into` (dst); the range must be within the file. If the result is not 0,
   * reading failed and the plugin returns FVLM_ERROR_DEVICE. [the calling thread] */
  int32_t (*read)(void* context, uint64_t offset, void* into, uint64_t count);

  /* is_cancelled: if the result is not 0, the plugin returns soon, with any error. A plugin polls it at least once per
   * packet and in every loop whose length the file controls. [the calling thread] */
  int32_t (*stop)(void* context);
} fvlm_video_file;

typedef struct fvlm_video_probe {
  uint32_t struct_size;
  const fvlm_video_file* file;
  double* seconds; /* out: duration of the video, as the file says */
  int64_t* width;  /* out: of an upright frame */
  int64_t* height; /* out */
} fvlm_video_probe;

/* A decoded frame, valid for the duration of the callback. */
typedef struct fvlm_video_picture {
  uint32_t struct_size;
  int64_t index; /* into fvlm_video_decode.times */
  int64_t width, height;
  int64_t stride;     /* bytes from row to row */
  const uint8_t* rgb; /* [height, width, 3] */
} fvlm_video_picture;

typedef struct fvlm_video_decode {
  uint32_t struct_size;
  const fvlm_video_file* file;
  int64_t time_count;
  const double* times; /* [time_count], seconds, none negative, ascending; equal ones may follow each other */

  /* Called once per time, in order, with the frame that is on display then: the last one that starts at or before it,
   * so the last frame of the file for times after its end. If the result is not 0, the plugin returns, with any error.
   * [the calling thread] */
  int32_t (*picture)(void* context, const fvlm_video_picture* picture);
  void* context;

  double* seconds; /* out: the last of the times, or the end of the video if that is earlier */
} fvlm_video_decode;

typedef struct fvlm_video_v1 {
  fvlm_table base;

  /* Whether files of this format are supported, and how well. [any thread] */
  void (*supports)(const fvlm_video_query* query, fvlm_support* support);

  /* Reads the file's own description of the video, and no more than that needs. May allocate host memory. [any thread],
   * but never two calls of one instance at once. */
  fvlm_status (*probe)(fvlm_instance* instance, const fvlm_video_query* query, const fvlm_video_probe* arguments,
                       fvlm_error* error);

  /* Decodes the frames at the given times. May allocate host memory. [any thread], but never two calls of one instance
   * at once. */
  fvlm_status (*decode)(fvlm_instance* instance, const fvlm_video_query* query, const fvlm_video_decode* arguments,
                        fvlm_error* error);
} fvlm_video_v1;

#ifdef __cplusplus
}
#endif
#endif
