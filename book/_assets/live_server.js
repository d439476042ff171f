/* Says nothing. `make live` answers in its place and tells the page that code can run here
   (staircase_lib/live.py). */
