"""Words of the state of the replay of disk parts."""

from __future__ import annotations

# Words of the state of `replay_disk_group`.
R_OFFSET = 0
R_DONE = 1
R_ROW = 2  # rows done of the insert run at R_OFFSET
R_PAGE = 3
R_IMAGE = 4  # offset of the image of that row
R_IS_PLANNED = 5  # its disk part is planned: R_PLAN
R_PLAN = 6
REPLAY_STATE_WORDS = 8
