/* fvlm/video.h: pictures (decoded frames) out of video files. Kind "fvlm.video/1". Host memory only.
 *
 * The engine holds the file and lends it through a callback; a plugin opens nothing itself. Pictures come out one at a
 * time, upright, in RGB, so that no more than one of full size is ever held for the engine. Times are seconds from the
 * first picture on. Files come from strangers: whatever they say, a plugin ends with a status, takes no more memory
 * than some pictures of most_pixels (the maximum), and calls stop() (is_cancelled) again and again. A damaged file, or
 * one beyond the limits, is FVLM_ERROR_DATA. */
#ifndef FVLM_VIDEO_H
#define FVLM_VIDEO_H

#include <fvlm/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FVLM_VIDEO_KIND "fvlm.video/1"

typedef struct fvlm_video_query {
  uint32_t struct_size;
  const char* format;  /* "mp4": what names of such files end in, in lower case */
  int64_t most_pixels; /* max_pixels, of a picture; a file with larger ones is refused before memory is taken for
                          them */
} fvlm_video_query;

/* A file, lent for one call. Its functions are called by the calling thread alone. */
typedef struct fvlm_video_file {
  uint32_t struct_size;
  uint64_t size; /* bytes */
  void* context;

  /* Copies `count` bytes from `offset` on to `into` (dst); all of them lie within the file. Returns not 0 where that
   * failed, and the plugin gives up with FVLM_ERROR_DEVICE. */
  int32_t (*read)(void* context, uint64_t offset, void* into, uint64_t count);

  /* is_cancelled: returns not 0 where the plugin is to give up soon, with any error. It is called at least once a
   * packet and in every loop that the file can make long. */
  int32_t (*stop)(void* context);
} fvlm_video_file;

typedef struct fvlm_video_probe {
  uint32_t struct_size;
  const fvlm_video_file* file;
  double* seconds; /* out: how long the pictures last, as the file says */
  int64_t* width;  /* out: of a picture, upright */
  int64_t* height; /* out */
} fvlm_video_probe;

/* A picture (one decoded frame), lent for the time of the callback. */
typedef struct fvlm_video_picture {
  uint32_t struct_size;
  int64_t index; /* which of the times it is for */
  int64_t width, height;
  int64_t stride;     /* bytes from row to row */
  const uint8_t* rgb; /* [height, width, 3] */
} fvlm_video_picture;

typedef struct fvlm_video_decode {
  uint32_t struct_size;
  const fvlm_video_file* file;
  int64_t time_count;
  const double* times; /* [time_count], seconds, none negative, ascending; equal ones may follow each other */

  /* Called once for each time, in their order, with the picture that is shown then: the last one that begins no later,
   * which is the last of all where the file ends earlier. Where it returns not 0, the plugin gives up, with any error.
   */
  int32_t (*picture)(void* context, const fvlm_video_picture* picture);
  void* context;

  double* seconds; /* out: the last of the times; where the pictures end before it, when they end */
} fvlm_video_decode;

typedef struct fvlm_video_v1 {
  fvlm_table base;

  /* [any thread] */
  void (*supports)(const fvlm_video_query* query, fvlm_support* support);

  /* Reads what the file says of itself, and no more than that needs. May allocate host memory. On any thread, but never
   * two calls of one instance at once. */
  fvlm_status (*probe)(fvlm_instance* instance, const fvlm_video_query* query, const fvlm_video_probe* arguments,
                       fvlm_error* error);

  /* May allocate host memory. On any thread, but never two calls of one instance at once. */
  fvlm_status (*decode)(fvlm_instance* instance, const fvlm_video_query* query, const fvlm_video_decode* arguments,
                        fvlm_error* error);
} fvlm_video_v1;

#ifdef __cplusplus
}
#endif
#endif
