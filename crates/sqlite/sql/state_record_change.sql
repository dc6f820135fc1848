-- Plan: SCAN state_record_change
update state_record_change set last = last + 1 returning last
