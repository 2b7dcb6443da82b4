"""What programs that watch a store get: metrics in Prometheus' text format, over HTTP too, and spans of OpenTelemetry.

Read `metrics`, whose table has every name. Nothing is counted here: `Database.status` is read when a program asks.
"""
