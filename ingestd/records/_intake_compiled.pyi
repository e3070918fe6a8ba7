from ingestd.records._intake_plain import NAME as NAME
from ingestd.records._intake_plain import Allowance as Allowance
from ingestd.records._intake_plain import RecordBuffer as RecordBuffer
from ingestd.records._intake_plain import RecordIntake as RecordIntake
from ingestd.records._intake_plain import SendResults as SendResults
from ingestd.records._intake_plain import TopicIntake as TopicIntake
from ingestd.records._intake_plain import tell_results as tell_results
