"""Words of the state of the replay of disk parts."""

from __future__ import annotations

# Words of the state of `replay_disk_group`.
R_OFFSET = 0
R_DONE = 1
R_ROW = 2  # rows replayed of the insert run at R_OFFSET
R_PAGE = 3
R_IMAGE = 4  # offset of the next row's image
R_IS_PLANNED = 5  # 1: its disk part is planned, in R_PLAN
R_PLAN = 6
REPLAY_STATE_WORDS = 8
